# An image whose command is fedvlp; docs/install.md says how it is used.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels

FROM python:${PYTHON}-slim
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)${EXTRAS:+[$EXTRAS]}" && rm -r /wheels
RUN useradd --create-home --uid 1000 fedvlp && mkdir /work && chown fedvlp /work
USER fedvlp
# a volume that is mounted here takes over whose folder it is
RUN mkdir /home/fedvlp/.cache
WORKDIR /work
ENTRYPOINT ["fedvlp"]
CMD ["--help"]

"""The ServerApp: Flower starts it for a run, and fedvlp trains over Flower's grid as it does in a simulation."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedvlp.sites import serve
from fedvlp.sites.flower.grid_transport import GridTransport
from fedvlp.utils.errors import UserError


def make_server_app(config: Path) -> ServerApp:
    """Returns the ServerApp of an app that ``fedvlp deploy init`` wrote.

    Args:
        config: the app's config, as of ``fedvlp fit``.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def train(grid: Grid, context: Context) -> None:
        """Runs the federation; a run that does not end well is marked as failed."""
        run_dir = Path(str(context.run_config["run-dir"])).expanduser()
        checkpoint = str(context.run_config["ckpt-path"])
        code = serve(config, GridTransport(grid), run_dir, checkpoint or None)
        if code:
            raise UserError(f"The federation ended with exit code {code}; its log says why.")

    return app

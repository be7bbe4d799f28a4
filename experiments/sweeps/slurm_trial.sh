#!/usr/bin/env bash
# Tries `fedvlp sweep --launcher slurm` and `srun` on a cluster with two free nodes: slurm_trial.sh FOLDER [more of fit]
set -euo pipefail
folder=$1
shift
mkdir -p "$folder"
fit=(--config=data/icon_domains --data.cache_dir="$folder/cache" --model.clip.name=fedvlp-tiny)
fit+=(--trainer.accelerator=cpu --trainer.runtime.num_threads=1 "$@")
sweep=(fedvlp sweep --models promptfl,linear_probe --held_out emoji --seeds 0,1,2 "${fit[@]}" --trainer.rounds=20)

fail() {
    echo "slurm_trial: $1" >&2
    exit 1
}

wait_for() { # COMMAND: until it succeeds, at most 30 minutes
    for _ in $(seq 900); do
        if "$@"; then return; fi
        sleep 2
    done
    fail "timed out: $*"
}

has_checkpoint() { compgen -G "$folder/slurm/$1/*/checkpoints/*" >/dev/null; }

# The folder of the run that task $1 of the array makes.
run_of_task() { "${sweep[@]}" --output "$folder/slurm" --dry_run | sed -nE "$(($1 + 1))s/^[a-z]+ ([^:]+): .*/\1/p"; }

no_task_queued() { [ -z "$(squeue --me --noheader --name="$name")" ]; }

echo "1. Six runs as an array; task 0 is requeued and task 1 killed by SIGKILL after their first rounds."
first=$(run_of_task 0)
second=$(run_of_task 1)
"${sweep[@]}" --output "$folder/slurm" --launcher slurm | tee "$folder/first.txt"
array=$(sed -nE 's/.*submitted as the array ([0-9]+).*/\1/p' "$folder/first.txt")
name=$(sed -nE 's/.*--name=([^;]+);.*/\1/p' "$folder/first.txt")
wait_for has_checkpoint "$first"
scontrol requeue "${array}_0"
wait_for has_checkpoint "$second"
scancel --full --signal=KILL "${array}_1"
"${sweep[@]}" --output "$folder/slurm" --launcher slurm | grep "in Slurm's queue, so none is submitted" ||
    fail "a second call must submit nothing while tasks are queued"
wait_for no_task_queued
grep -q "resuming from" "$folder/slurm/slurm-${array}_0.txt" || fail "the requeued task did not resume its run"

echo "2. The next call submits the killed run; the one after it prints the table."
"${sweep[@]}" --output "$folder/slurm" --launcher slurm | tee "$folder/second.txt"
grep -q "6 runs in .*, 1 of them missing; submitted" "$folder/second.txt" || fail "expected one missing run"
wait_for no_task_queued
"${sweep[@]}" --output "$folder/slurm" --launcher slurm | tee "$folder/third.txt"
grep -q "6 of 6 runs done" "$folder/third.txt" || fail "expected six runs"

echo "3. The same sweep without Slurm has the same prompts, byte for byte."
"${sweep[@]}" --output "$folder/local" >"$folder/local.txt"
for run in "$folder"/local/*/*/; do
    run=${run#"$folder/local/"}
    cmp "$folder/local/$run"*/prompts.safetensors "$folder/slurm/$run"*/prompts.safetensors
done

echo "4. srun on two nodes has the prompts of one process, byte for byte."
one=(fedvlp fit --config=promptfl "${fit[@]}" --data.held_out=emoji --trainer.rounds=2 --trainer.default_root_dir="$folder/fit")
"${one[@]}" --trainer.name=one >"$folder/one.txt"
srun --nodes=2 --ntasks-per-node=1 --job-name=fedvlp "${one[@]}" --trainer.name=two \
    --trainer.strategy=ddp --trainer.devices=1 --trainer.num_nodes=2 >"$folder/two.txt"
cmp "$folder"/fit/one/*/prompts.safetensors "$folder"/fit/two/*/prompts.safetensors
echo "All four steps ended as documented."

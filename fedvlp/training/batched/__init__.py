"""Several clients trained in one batched call. Imports core, utils and what training gives to every client."""

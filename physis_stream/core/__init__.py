"""The ring that decides: pure, deterministic, standard library only; no clock, no threads, no tensors."""

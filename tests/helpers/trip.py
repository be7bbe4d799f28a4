"""TRIP's clustering, token by token, and tokens to cluster."""

import numpy as np
import torch


def sequential_kmeans(tokens, start, capacities, max_iterations=100, tolerance=1e-4, multiplier_step=1e-4):
    """Cluster the tokens of one image, one after another, cheapest first."""
    tokens = np.asarray(tokens, dtype=np.float64)
    limits = np.asarray(capacities)
    centroids = tokens[start].copy()
    multipliers = np.zeros(len(start))
    for _ in range(max_iterations):
        distances = np.linalg.norm(tokens[:, None] - centroids[None], axis=2)
        costs = distances + multipliers
        assignment = np.full(len(tokens), -1)
        sizes = np.zeros(len(start), dtype=int)
        for token in np.argsort(costs.min(axis=1), kind="stable"):
            cluster = costs[token].argmin()
            if sizes[cluster] < limits[cluster]:
                assignment[token] = cluster
                sizes[cluster] += 1
        multipliers = multipliers + multiplier_step * (sizes - limits)
        moved = centroids.copy()
        farthest = distances.min(axis=1).argmax()
        for cluster in range(len(start)):
            if sizes[cluster]:
                moved[cluster] = tokens[assignment == cluster].mean(axis=0)
            else:
                moved[cluster] = tokens[farthest]
                multipliers[cluster] = 0.0
        if np.linalg.norm(moved - centroids, axis=1).mean() < tolerance:
            break
        centroids = moved
    return centroids, sizes, assignment


def scene(batch=6, num_tokens=50, width=24, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    centres = scale * torch.randn(batch, 5, width, generator=generator)
    which = torch.randint(5, (batch, num_tokens), generator=generator)
    noise = torch.randn(batch, num_tokens, width, generator=generator)
    tokens = centres.gather(1, which[:, :, None].expand(-1, -1, width)) + noise
    start = torch.stack([torch.randperm(num_tokens, generator=generator)[:4] for _ in range(batch)])
    return tokens, start

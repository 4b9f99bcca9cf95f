#!/usr/bin/env python3
"""One table from the raw log of script/bench: the best of its rounds, and ratios between them."""

import json
import sys

GIB = 2**30


def read(path):
    results = []
    with open(path, encoding="utf-8") as log:
        for line in log:
            if line.startswith('{"bench"'):
                results.append(json.loads(line))
    return results


def best(results, **wanted):
    """The fastest result with these members; None when there is none."""
    found = [r for r in results if all(r.get(k) == v for k, v in wanted.items())]
    return max(found, key=lambda r: r["tokens_per_second"], default=None)


def print_steps(results):
    """Beside each step PyTorch's, compiled and eager; ratios are to the faster of the two."""
    print(f"{'training step':<22}{'tokens/s':>10}{'of peak':>9}{'memory':>13}{'vs torch':>10}")
    for product in ("f32", "bf16"):
        torch = [best(results, bench="torch_step", product=product, mode=mode)
                 for mode in ("compiled", "eager")]
        torch = [one for one in torch if one is not None]
        strongest = max(torch, key=lambda one: one["tokens_per_second"], default=None)
        for recompute in (False, True):
            ours = best(results, bench="step", product=product, recompute=recompute)
            if ours is None:
                continue
            name = product + (", recomputing" if recompute else "")
            line = (f"  {name:<20}{ours['tokens_per_second']:>10.1f}"
                    f"{100 * ours['share_of_peak']:>8.1f}%{ours['peak_bytes'] / GIB:>9.2f} GiB")
            if strongest is not None:
                line += f"{ours['tokens_per_second'] / strongest['tokens_per_second']:>9.2f}x"
                line += f"  {100 * ours['peak_bytes'] / strongest['peak_bytes']:.0f} % of its memory"
            print(line)
        for one in torch:
            name = f"  torch {one['mode']} {product}"
            print(f"  {name:<20}{one['tokens_per_second']:>10.1f}{'':>9}"
                  f"{one['peak_bytes'] / GIB:>9.2f} GiB")


def print_parts(results):
    for product in ("f32", "bf16"):
        step = best(results, bench="step", product=product, recompute=False)
        if step is None:
            continue
        print(f"\nstep with product {product}, peak {step['peak_gflops']:.0f} GFLOP/s")
        total = step["step_seconds"]
        for name, part in step["parts"].items():
            line = f"  {name:<20}{100 * part['seconds'] / total:>7.1f}% of time"
            if part["gflop"] > 0:
                share = part["gflop"] / part["seconds"] / step["peak_gflops"]
                line += f"{100 * share:>7.1f}% of peak"
            print(line)


def print_generation(results):
    print(f"\n{'generation':<22}{'tokens/s':>10}{'of floor':>10}")
    for storage in ("f32", "bf16", "keep"):
        one = best(results, bench="generate", storage=storage)
        if one is None:
            continue
        name = "as in the file" if storage == "keep" else storage
        print(f"  {name:<20}{one['tokens_per_second']:>10.1f}{100 * one['share_of_floor']:>9.1f}%"
              f"  {one['weight_bytes'] / 1e6:.0f} MB at {one['bandwidth'] / 1e9:.0f} GB/s")


def main():
    results = read(sys.argv[1])
    print_steps(results)
    print_parts(results)
    print_generation(results)


if __name__ == "__main__":
    main()

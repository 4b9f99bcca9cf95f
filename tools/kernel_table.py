#!/usr/bin/env python3
"""What the compiler made of the kernels for GPUs: registers, stack and wide loads of each.

    kernel_table.py CUOBJDUMP DIRECTORY TABLE [--update]

Reads the objects of DIRECTORY and compares them with TABLE, a text file with one row per kernel. Exits
with 1 if a kernel is new, missing or worse: more registers or stack, fewer loads and stores of 16 bytes,
or more loads of less than 4. --update rewrites the table. Another release of nvcc allocates differently:
then only new and missing kernels count.

Stack holds what does not fit into registers (spills), and arrays with indices unknown at compile time.
Registers and stack are listed for every architecture, loads only for sm_90: disassembling takes time.
"""

import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

LOADS_OF = "sm_90"
HEADER = """\
# What nvcc makes of every kernel. script/cuda-compile compares with this; script/cuda-compile --update
# writes it. registers and stack (bytes a thread; spills are among them): of {architectures}.
# Of {loads_of}: loads and stores of 16 bytes (LDG.128, STG.128), and loads of 1 and 2 (narrow).
# nvcc {nvcc}
"""
COLUMNS = ("registers", "stack", "LDG.128", "STG.128", "narrow", "kernel")
Row = collections.namedtuple("Row", "registers stack wide_loads wide_stores narrow")


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def short(name):
    """The short name of a demangled kernel; for row kernels, that of their arguments."""
    name = name.replace("(anonymous namespace)::", "").replace("jackscrew::", "").replace("cuda::", "")
    name = re.sub(r"\)?\([^()]*\)$", "", name.removeprefix("void "))
    return re.sub(r"^run_rows<(.*)>$", r"\1", name).replace(" >", ">").replace(" ", "")


def resources(cuobjdump, path):
    """(architecture, mangled name) -> (registers, stack)."""
    out, architecture, name = {}, None, None
    for line in run(cuobjdump, "-res-usage", path).splitlines():
        if found := re.match(r"arch = (\w+)", line):
            architecture = found[1]
        elif found := re.match(r"\s*Function (\S+):", line):
            name = found[1]
        elif found := re.match(r"\s*REG:(\d+) STACK:(\d+)", line):
            out[architecture, name] = int(found[1]), int(found[2])
    return out


def accesses(cuobjdump, path):
    """Mangled name -> (wide loads, wide stores, narrow loads)."""
    out, counts = {}, None
    for line in run(cuobjdump, "-sass", "-arch", LOADS_OF, path).splitlines():
        if found := re.match(r"\s*Function : (\S+)", line):
            counts = out[found[1]] = [0, 0, 0]
        elif found := re.search(r"\b(LDG|STG)\.([\w.]+)", line):
            parts = found[2].split(".")
            if "128" in parts:
                counts[0 if found[1] == "LDG" else 1] += 1
            elif found[1] == "LDG" and {"U8", "S8", "U16", "S16"} & set(parts):
                counts[2] += 1
    return out


def measure(cuobjdump, directory):
    """Architectures, and a Row for every kernel."""
    paths = sorted(pathlib.Path(directory).glob("*.o"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda path: (resources(cuobjdump, path), accesses(cuobjdump, path)),
                              paths))
    architectures = sorted({key[0] for used, _ in found for key in used},
                           key=lambda level: int(level[3:]))
    mangled = sorted({key[1] for used, _ in found for key in used})
    names = dict(zip(mangled, map(short, run("c++filt", *mangled).splitlines())))
    rows = {}
    for used, loads in found:
        for name in {key[1] for key in used}:
            registers, stack = zip(*(used[level, name] for level in architectures))
            rows[names[name]] = Row(registers, stack, *loads[name])
    return architectures, rows


def numbers(values):
    return "/".join(map(str, values))


def text(rows):
    lines = [COLUMNS] + [(numbers(row.registers), numbers(row.stack), str(row.wide_loads),
                          str(row.wide_stores), str(row.narrow), name)
                         for name, row in sorted(rows.items())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS) - 1)]
    return "".join("  ".join([*map(str.rjust, line, widths), line[-1]]) + "\n" for line in lines)


def read(path):
    """Parses what text() and HEADER wrote: the rows, the architectures and nvcc's release."""
    rows, architectures, release = {}, [], ""
    for line in path.read_text().splitlines():
        if found := re.match(r"# writes it.*: of (sm_[\w, ]+)\.", line):
            architectures = found[1].split(", ")
        elif line.startswith("# nvcc "):
            release = line.removeprefix("# nvcc ")
        elif line and not line.startswith("#") and line.split()[-1] != COLUMNS[-1]:
            registers, stack, *counts, name = line.split()
            rows[name] = Row(*(tuple(map(int, cell.split("/"))) for cell in (registers, stack)),
                             *map(int, counts))
    return rows, architectures, release


def only(rows, of, wanted):
    """The rows with registers and stack of only the wanted architectures; they have those of `of`."""
    at = [of.index(architecture) for architecture in wanted]
    return {name: row._replace(registers=tuple(row.registers[i] for i in at),
                               stack=tuple(row.stack[i] for i in at)) for name, row in rows.items()}


def more(new, old):
    return any(a > b for a, b in zip(new, old)) or len(new) != len(old)


def complaints(new, old):
    """Descriptions of what is worse in the new row."""
    for column, is_worse in (("registers", more(new.registers, old.registers)),
                             ("stack", more(new.stack, old.stack)),
                             ("wide_loads", new.wide_loads < old.wide_loads),
                             ("wide_stores", new.wide_stores < old.wide_stores),
                             ("narrow", new.narrow > old.narrow)):
        if is_worse:
            before, now = getattr(old, column), getattr(new, column)
            cells = [numbers(cell) if isinstance(cell, tuple) else cell for cell in (before, now)]
            yield f"{column.replace('_', ' ')} {cells[0]}, now {cells[1]}"


def compare(new, old, same_compiler):
    """Prints the differences; returns the number of kernels for which the check fails."""
    failures = 0
    for name in sorted({*new, *old}):
        if name not in old or name not in new:
            worse = ["is new"] if name not in old else ["is gone"]
        else:
            worse = list(complaints(new[name], old[name])) if same_compiler else []
        if worse:
            failures += 1
            print(f"{name}: {'; '.join(worse)}")
    return failures


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    cuobjdump, directory, table = arguments
    table = pathlib.Path(table)
    release = re.search(r"release [\d.]+, V([\d.]+)", run("nvcc", "--version"))[1]
    architectures, new = measure(cuobjdump, directory)
    print(text(new), end="")
    if "--update" in sys.argv:
        header = HEADER.format(architectures=", ".join(architectures), loads_of=LOADS_OF, nvcc=release)
        table.write_text(header + text(new))
        print(f"{table}: written")
        return 0
    old, known, old_release = read(table)
    if missing := set(architectures) - set(known):
        print(f"{table} says nothing of {', '.join(sorted(missing))}: script/cuda-compile --update")
        return 1
    old = only(old, known, architectures)
    if release != old_release:
        print(f"nvcc is {release} and {table} is of {old_release}: registers are not compared")
    failures = compare(new, old, release == old_release)
    if failures:
        print(f"{failures} kernels differ from {table} in a way that it does not allow; where that is "
              "meant: script/cuda-compile --update")
    elif new != old and release == old_release:
        print(f"better than {table}: keep it by script/cuda-compile --update")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Bring the project to a machine that reaches nothing: packages it lacks in one folder, and large files in parts.

    python scripts/pack_offline.py packages peft gguf --into packed --python 3.12 --installed there.txt
    python scripts/pack_offline.py cut packed.tar --mib 60
    python scripts/pack_offline.py join packed.tar

docs/offline.md tells the whole way. Needs nothing but Python and pip.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
BLOCK = 1 << 20


def pins(text: str) -> dict[str, str]:
    """`name==version` lines by their normalised names; anything else is passed over."""
    found = (re.match(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line.strip()) for line in text.splitlines())
    return {normalised(match[1]): f"{normalised(match[1])}=={match[2]}" for match in found if match}


def normalised(name: str) -> str:
    """As package indices compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lacking(wanted: Sequence[str], pinned: dict[str, str], installed: dict[str, str]) -> list[str]:
    """What to fetch: the names wanted (all that are pinned, where none is) at their pinned versions, less those that are there.

    A package that is there in another version is left alone: to shadow half of an environment breaks it.
    """
    names = [normalised(name) for name in wanted] or list(pinned)
    unknown = [name for name in names if name not in pinned]
    if unknown:
        raise SystemExit(f"not in {CONSTRAINTS.name}: {', '.join(unknown)}")
    return [pinned[name] for name in names if name not in installed]


def packages(args: argparse.Namespace) -> None:
    """Fetch wheels for another Python and platform, unpacked into a folder for PYTHONPATH."""
    there = pins(args.installed.read_text()) if args.installed else {}
    needed = lacking(args.names, pins(CONSTRAINTS.read_text()), there)
    if not needed:
        print("nothing is lacking")
        return
    # Without dependencies: each package is named, so that none of the large ones (torch, CUDA) comes in by the way.
    target = [flag for name in args.platform for flag in ("--platform", name)] + ["--python-version", args.python]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--upgrade"]
    done = subprocess.run([*command, *target, "--target", str(args.into), *needed], check=False)
    if done.returncode:
        raise SystemExit("pip could not fetch them all; name fewer packages to see which")
    print(f"{len(needed)} packages in {args.into}; there: PYTHONPATH=src:{args.into.name} python -m milonga doctor")


def cut(args: argparse.Namespace) -> None:
    """Parts beside the file, and a list of checksums of the parts and of the whole, as `sha256sum` writes it."""
    file: Path = args.file
    for old in file.parent.glob(f"{file.name}.part-*"):
        old.unlink()
    size = args.mib * BLOCK
    names = [f"{file.name}.part-{number:04d}" for number in range(max(1, math.ceil(file.stat().st_size / size)))]
    with file.open("rb") as source:
        for name in names:
            with file.with_name(name).open("wb") as part:
                for _ in range(args.mib):
                    part.write(source.read(BLOCK))
    listed = [f"{checksum(file.with_name(name))}  {name}" for name in [*names, file.name]]
    checksums(file).write_text("\n".join(listed) + "\n")
    print(f"{len(names)} parts and {checksums(file).name}; there, in the same folder:")
    print(f"  cat {file.name}.part-* > {file.name} && sha256sum --check {checksums(file).name}")


def join(args: argparse.Namespace) -> None:
    """The whole from its parts, each checked before anything is written; the file appears only if it is right."""
    file: Path = args.file
    if not checksums(file).is_file():
        raise SystemExit(f"{checksums(file)} does not exist: it lies beside the parts")
    listed = dict(reversed(line.split("  ", 1)) for line in checksums(file).read_text().splitlines())
    expected = listed.pop(file.name)
    for name, digest in listed.items():
        part = file.with_name(name)
        if not part.is_file():
            raise SystemExit(f"part {part} is missing; bring it again")
        if checksum(part) != digest:
            raise SystemExit(f"part {part} does not match its checksum; bring it again")
    draft = file.with_name(f"{file.name}.draft")
    with draft.open("wb") as target:
        for name in listed:
            for block in blocks(file.with_name(name)):
                target.write(block)
    if checksum(draft) != expected:
        draft.unlink()
        raise SystemExit(f"{file} does not match its checksum though its parts do: cut it again")
    draft.replace(file)
    print(f"{file}: {len(listed)} parts, as they were cut")


def checksums(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while block := source.read(BLOCK):
            yield block


def checksum(file: Path) -> str:
    digest = hashlib.sha256()
    for block in blocks(file):
        digest.update(block)
    return digest.hexdigest()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    fetch = commands.add_parser("packages", help="wheels for another machine, unpacked into a folder")
    fetch.add_argument("names", nargs="*", help="packages of constraints.txt; all of them by default")
    fetch.add_argument("--into", type=Path, required=True, help="the folder")
    fetch.add_argument("--python", required=True, help="its Python version, such as 3.12")
    fetch.add_argument("--platform", action="append", default=[], help="such as manylinux_2_28_x86_64; may be repeated")
    fetch.add_argument("--installed", type=Path, help="what `pip list --format freeze` printed there")
    fetch.set_defaults(run=packages)
    for name, command, text in (("cut", cut, "a file into parts"), ("join", join, "parts into the file")):
        one = commands.add_parser(name, help=text)
        one.add_argument("file", type=Path)
        one.set_defaults(run=command)
        if name == "cut":
            one.add_argument("--mib", type=int, default=60, help="most MiB of a part")
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()

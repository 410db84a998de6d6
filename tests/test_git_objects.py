"""Git folders of others are data: nothing of their settings is run, and no name leads out of them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from milonga.errors import DataError
from milonga.sandbox import folders
from milonga.tasks import git_objects
from milonga.tasks.bugs_git import export_repository, load_parts
from milonga.tasks.git_objects import check_names, open_git
from repository_helpers import BOXES, git, make_repository

ATTRIBUTES = "*.py filter=evil diff=evil merge=evil text eol=crlf export-subst\nsums.py export-ignore\n"
PROMISE = '[extensions]\n\tpartialClone = origin\n[core]\n\trepositoryformatversion = 1\n[remote "origin"]\n\tpromisor = true\n'
SETTINGS = {
    "a filter that checks out": '[filter "evil"]\n\tsmudge = {run}\n\trequired = true\n',
    "a filter that checks in": '[filter "evil"]\n\tclean = {run}\n',
    "a filter process": '[filter "evil"]\n\tprocess = {run}\n\trequired = true\n',
    "a monitor of files": "[core]\n\tfsmonitor = {run}\n",
    "a pager": "[core]\n\tpager = {run}\n[pager]\n\tls-tree = true\n\trev-list = true\n\tcat-file = true\n",
    "another diff": '[diff]\n\texternal = {run}\n[diff "evil"]\n\ttextconv = {run}\n\tcommand = {run}\n',
    "other commands": "[alias]\n\tls-tree = !{run}\n\tcat-file = !{run}\n\trev-list = !{run}\n\tarchive = !{run}\n",
    "hooks elsewhere": "[core]\n\thooksPath = {hooks}\n",
    "an included file": "[include]\n\tpath = {included}\n",
    "a remote by ssh": PROMISE + "\turl = ssh://nowhere.invalid/x\n[core]\n\tsshCommand = {run}\n",
    "a remote by a program": PROMISE + "\turl = {folder}\n\tuploadpack = {run}\n",
    "a remote by any command": PROMISE + "\turl = ext::{run}\n[protocol]\n\tallow = always\n",
    "a helper for passwords": PROMISE
    + "\turl = http://127.0.0.1:9/x\n[credential]\n\thelper = !{run}\n[core]\n\taskPass = {run}\n",
    "a proxy": PROMISE + "\turl = git://127.0.0.1:9/x\n[core]\n\tgitProxy = {run}\n",
    "a form of archive": '[tar "tar"]\n\tcommand = {run}\n[core]\n\talternateRefsCommand = {run}\n',
    "a check of signatures": "[gpg]\n\tprogram = {run}\n[log]\n\tshowSignature = true\n",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_a_git_folder_is_run(name: str, tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes", {".gitattributes": ATTRIBUTES, "data.txt": "$Format:%H$\n"})
    evil, canary, included = tmp_path / "evil.sh", tmp_path / "canary", tmp_path / "included"
    evil.write_text(f"#!/bin/sh\necho run >> {canary}\ncat\n")
    evil.chmod(0o755)
    for hook in ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc"):
        (folder / ".git" / "hooks").mkdir(exist_ok=True)
        (folder / ".git" / "hooks" / hook).symlink_to(evil)
    words = {"run": evil, "folder": tmp_path / "boxes", "hooks": folder / ".git" / "hooks", "included": included}
    included.write_text(SETTINGS["a filter that checks out"].format(**words))
    with (folder / ".git" / "config").open("a") as config:
        config.write(SETTINGS[name].format(**words))
    parts, _ = load_parts(folder, 10_000, seed=0)
    assert parts[0].code["boxes.py"] == BOXES and "sums.py" in parts[0].code and parts[0].rest["data.txt"] == "$Format:%H$\n"
    assert len(parts[0].history["boxes.py"]) == 1
    for stored in (folder / ".git" / "objects").glob("??/*"):  # nothing is fetched for what is missing
        if zlib.decompress(stored.read_bytes()).endswith(BOXES.encode()):
            stored.unlink()
    with pytest.raises(DataError, match=r"lacks the content|cannot be read by git"):
        export_repository(folder)
    assert not canary.exists()


def test_replaced_objects_and_grafts_have_no_effect(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes")
    git(folder, "replace", "HEAD", "HEAD~1")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "grafts").write_text("")
    assert export_repository(folder).code["boxes.py"] == BOXES


def test_objects_are_not_looked_for_elsewhere(tmp_path: Path) -> None:
    folder, other = make_repository(tmp_path / "boxes"), make_repository(tmp_path / "other")
    objects = folder / ".git" / "objects"
    (objects / "info" / "alternates").write_text(f"{other}/.git/objects\n")
    with pytest.raises(DataError, match="borrows objects"):
        export_repository(folder)
    (objects / "info" / "alternates").unlink()
    (objects / "pack" / "pack-1.idx").symlink_to(other / "boxes.py")
    with pytest.raises(DataError, match="something that is no file"):
        export_repository(folder)
    (objects / "pack" / "pack-1.idx").unlink()
    os.mkfifo(objects / "pack" / "pack-2.idx")
    with pytest.raises(DataError, match="something that is no file"):
        export_repository(folder)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".git").write_text(f"gitdir: {other}/.git\n")
    with pytest.raises(DataError, match="a worktree or a submodule"):
        export_repository(tmp_path / "linked")


def test_head_is_read_without_waiting_and_names_a_commit(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes")
    git(folder, "pack-refs", "--all")
    assert export_repository(folder).code["boxes.py"] == BOXES
    head = folder / ".git" / "HEAD"
    for said in ("ref: refs/../../../secret", "ref: refs/heads/none", "0" * 39, "ref: " + "x" * 10_000):
        head.write_text(said)
        with pytest.raises(DataError, match="its HEAD names none"):
            export_repository(folder)
    head.unlink()
    os.mkfifo(head)
    with pytest.raises(DataError, match="its HEAD names none"):
        export_repository(folder)


def test_shallow_clones_and_long_hashes_are_read(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{folder}", "shallow")
    parts, _ = load_parts(tmp_path / "shallow", 10_000, seed=0)
    assert parts[0].code["boxes.py"] == BOXES and parts[0].history["boxes.py"] == ()
    (tmp_path / "long").mkdir()
    git(tmp_path / "long", "init", "-q", "--object-format=sha256")
    (tmp_path / "long" / "one.py").write_text("x = 1\n")
    git(tmp_path / "long", "add", "-A")
    git(tmp_path / "long", "commit", "-qm", "first")
    with open_git(tmp_path / "long") as opened:
        assert list(opened.read_files(opened.list_files())) == [("one.py", b"x = 1\n")]


def store(folder: Path, kind: str, content: bytes) -> str:
    """Store an object as git does, whatever it holds."""
    whole = f"{kind} {len(content)}\0".encode() + content
    identity = hashlib.sha1(whole).hexdigest()
    place = folder / ".git" / "objects" / identity[:2] / identity[2:]
    place.parent.mkdir(exist_ok=True)
    if not place.exists():
        place.write_bytes(zlib.compress(whole))
    return identity


def commit_tree(folder: Path, entries: list[tuple[str, bytes, str]]) -> str:
    """Make a tree of such modes, names and objects, and the commit of it the last one."""
    tree = store(
        folder, "tree", b"".join(b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(to)) for mode, name, to in entries)
    )
    who = "A <a@example.org> 0 +0000"
    (folder / ".git" / "HEAD").write_text(
        store(folder, "commit", f"tree {tree}\nauthor {who}\ncommitter {who}\n\nx\n".encode())
    )
    return tree


NAMES = [b"..", b".", b"../../x.py", b"/etc/x.py", b".git", b".GIT", b"git~1", b".git ", b"a\nb.py", b"a\x1b[2J.py", b"a\\b.py",
         "\u200d.git".encode(), b"\xff.py", b"x" * 300, b"a//b", b"c:x.py"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_out_of_a_folder_are_refused(name: bytes, tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes")
    blob = store(folder, "blob", b"x = 1\n")
    commit_tree(folder, [("100644", b"a.py", blob), ("100644", name, blob)])
    with pytest.raises(DataError, match=r"cannot be used|not UTF-8|cannot be read by git"):
        export_repository(folder)


def test_links_and_submodules_are_left_out_and_twins_refused(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "boxes")
    blob, link = store(folder, "blob", b"x = 1\n"), store(folder, "blob", b"/etc/passwd")
    commit_tree(
        folder, [("100644", b"a.py", blob), ("120000", b"b.py", link), ("160000", b"c", blob), ("100644", b"test_d.py", blob)]
    )
    assert export_repository(folder).tree == {"a.py": "x = 1\n", "test_d.py": "x = 1\n"}
    inner = commit_tree(folder, [("100644", b"b.py", blob)])
    for twins in ([("100644", b"a", blob), ("40000", b"a", inner)], [("100644", b"a.py", blob)] * 2):
        commit_tree(folder, twins)
        with pytest.raises(DataError, match=r"cannot be used|same name"):
            export_repository(folder)


def test_bombs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_repository(tmp_path / "boxes")
    tree = commit_tree(folder, [("100644", b"a.py", store(folder, "blob", b"x = 1\n"))])
    for _ in range(9):  # a thousand million files, in ten objects
        tree = commit_tree(folder, [("40000", b"%d" % number, tree) for number in range(10)])
    with pytest.raises(DataError, match="more files, or longer names"):
        export_repository(folder)
    huge = store(folder, "blob", b"x" * (git_objects.LARGEST_FILE + 1))
    small = [("100644", b"a.py", store(folder, "blob", b"x = 1\n")), ("100644", b"test_a.py", store(folder, "blob", b""))]
    commit_tree(folder, [*small, ("100644", b"z.txt", huge)])
    assert "z.txt" not in export_repository(folder).tree
    commit_tree(folder, [*small, ("100644", b"z.py", huge)])
    with pytest.raises(DataError, match=r"z\.py of .* more than 4 MB"):
        export_repository(folder)
    monkeypatch.setattr(git_objects, "MOST_BYTES", 5)
    commit_tree(folder, small)
    with pytest.raises(DataError, match="MB of files"):
        export_repository(folder)


KILLED = """
import os, sys
from pathlib import Path
from milonga.tasks.git_objects import open_git
with open_git(Path(sys.argv[1])):
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_reader_left_is_removed_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, own = make_repository(tmp_path / "repository"), tmp_path / "own"
    own.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(git_objects.__file__).parents[2]), "TMPDIR": str(own)}
    subprocess.run([sys.executable, "-c", KILLED, str(repository)], env=environment, check=False)
    assert len(list(own.iterdir())) == 1
    monkeypatch.setattr(folders.tempfile, "tempdir", str(own))
    folders.remove_abandoned_folders()
    assert not list(own.iterdir())


def test_ordinary_names_may_be_used() -> None:
    check_names(Path("x"), ["src/a.py", ".github/workflows/x.yml", "ü/ñ.py", ".gitignore", "a b/(c).txt", "digit~1.py"])

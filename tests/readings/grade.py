"""Grade a reader's answers: python3 grade.py ANSWERS.toml old|new

a: right if every group of the key has a file that the answer names, among at most MOST files. b: right letter.
c: right if every fact's pattern occurs (no case). An answer that is missing is wrong.
"""

import re
import sys
import tomllib
from pathlib import Path

MOST = 8
HERE = Path(__file__).resolve().parent
PATH = re.compile(r"(?:[\w<>*{}.-]+/)*[\w<>*{}-]+\.(?:py|toml|md|yml|json)\b|(?:[\w<>*{}.-]+/)+[\w<>*{}-]*")


def named(text):
    text = re.sub(
        r"\b(?:freshet_serving\.)?((?:processor|serving|compiler|models)(?:\.\w+)+)(?<!\.py)\b(?!/)",
        lambda m: m[1].replace(".", "/") + ".py",
        text,
    )
    return [p.removeprefix("./").removeprefix("freshet_serving/") for p in PATH.findall(text)]


def is_there(entry, paths, folders):
    if entry.startswith("new:"):  # a new file of that folder
        folder = entry[4:]
        return any(p.startswith(folder + "/") and Path(p).stem not in folders[folder] for p in paths)
    if not Path(entry).suffix:  # any file of that folder, or the folder
        return any(p.rstrip("/") == entry or p.startswith(entry + "/") for p in paths)
    short = "/".join(entry.split("/")[-2:])  # the last two names are enough
    return any(p in (entry, short) for p in paths)


def grade(id_, answer, key, tree):
    """Return "" if the answer is right, else what it lacks."""
    want = key[id_]
    if not answer.strip():
        return "no answer"
    if id_[0] == "a":
        paths = named(answer)
        if len(set(paths)) > MOST:
            return f"{len(set(paths))} files, {MOST} at most"
        return "; ".join(
            "none of " + ", ".join(g)
            for g in want[tree]
            if not any(is_there(e, paths, key["folders"][tree]) for e in g)
        )
    if id_[0] == "b":
        got = answer.strip()[:1].upper()
        return "" if got == want["letter"] else f"{want['letter']}, got {got}"
    return "; ".join("lacks: " + f["fact"] for f in want["facts"] if not re.search(f["pattern"], answer, re.I | re.S))


def main():
    answers = tomllib.loads(Path(sys.argv[1]).read_text())
    tree = sys.argv[2]
    if tree not in ("old", "new"):
        sys.exit("expected old or new")
    key = tomllib.loads((HERE / "key.toml").read_text())
    ids = [q["id"] for q in tomllib.loads((HERE / "questions.toml").read_text())["question"]]
    for unknown in sorted(set(answers) - set(ids)):
        print(f"{unknown}  not a question")
    right = dict.fromkeys("abc", 0)
    for id_ in ids:
        lacks = grade(id_, str(answers.get(id_, "")), key, tree)
        right[id_[0]] += not lacks
        print(f"{id_}  {'right' if not lacks else 'WRONG  ' + lacks}")
    count = {p: sum(i[0] == p for i in ids) for p in "abc"}
    for p in "abc":
        if any(i[0] == p for i in answers):
            print(f"part {p}: {right[p]}/{count[p]} = {right[p] / count[p]:.0%}")
    print(f"all: {sum(right.values())}/{len(ids)} = {sum(right.values()) / len(ids):.0%}")


if __name__ == "__main__":
    main()

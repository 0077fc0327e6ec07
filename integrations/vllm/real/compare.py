"""Tributary's answers and vLLM's after a hand-over, token by token: a table of methods, worlds and models; exit code 1 if any row fails.

    with.sh target/vllm python compare.py PROGRAM --model FOLDER [--worlds 2:200,1:20] [--methods NAME..] [--tensor-parallel RANKS] [--json FILE]

PROGRAM may also be the URL of a server that runs. An answer is judged against Tributary's own greedy decoding of the same request. It must be the same, or
differ first where Tributary's two likeliest tokens are closer than --tie. A method that cannot be handed over is a row with the server's reason.
Answers of approximate methods must differ from the exact one in at least 30 % of the requests, else the comparison would not see an import that is ignored.
"""

import argparse
import json
import pathlib
import sys

import kit

LEAST_DIFFERENT = 0.3


def compare_method(llm, proxy, url, requests, method, exact_answers, args, tokenizer):
    """One row: counts, ties and differences."""
    row = {"method": method, "requests": 0, "imported": 0, "rows": 0, "equal": 0, "ties": [], "different": [], "unlike_exact": 0, "exact": None, "refused": None}
    for start in range(0, len(requests), args.batch):
        batch = requests[start:start + args.batch]
        told = []
        for request in batch:
            description, reason = kit.prefill(url, request, method)
            if reason:
                row["refused"] = reason
                return row
            told.append(description)
        # The salt of exact KV is free: one of its own keeps vLLM from finding the prompt in its own cache.
        outputs = llm.generate([kit.prompt(one["token_ids"], one["cache_salt"] or one["id"]) for one in told],
                               [kit.sampling(args.tokens, one) for one in told], use_tqdm=False)
        for number, (request, one, output) in enumerate(zip(batch, told, outputs), start):
            expected, gaps = kit.decode(url, request, method, args.tokens)
            if number not in exact_answers:
                exact_answers[number] = kit.decode(url, request, "full", args.tokens)[0]
            judge(row, number, one, output, expected, gaps, exact_answers[number], args, tokenizer)
    row["right"] = row["equal"] + len(row["ties"]) == row["requests"] == row["imported"]
    return row


def judge(row, number, told, output, expected, gaps, exact_answer, args, tokenizer):
    ids = list(output.outputs[0].token_ids)
    imported = (output.kv_transfer_params or {}).get("tributary", {})
    row["exact"] = told["exact"]
    row["requests"] += 1
    row["rows"] += imported.get("imported_tokens", 0)
    row["imported"] += imported.get("imported_tokens") == told["tokens"] - 1
    row["unlike_exact"] += expected != exact_answer
    at = next((at for at in range(len(ids)) if tokenizer.decode(ids[:at + 1]) != "".join(expected[:at + 1])), None)
    if at is None:
        row["equal"] += 1
        return
    found = {"request": number, "at": at, "gap": gaps[at], "vllm": tokenizer.decode(ids), "tributary": "".join(expected), "import": imported}
    row["ties" if gaps[at] < args.tie else "different"].append(found)


def methods_of(url, wanted):
    status, told = kit.call(url, "GET", "/v1/status")
    known = [one["name"] for one in told["methods"]]
    return [name for name in known if not wanted or name in wanted]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", type=pathlib.Path, default=kit.DEMO)
    parser.add_argument("--worlds", default="2:200,1:20,3:20,4:20", help="WORLD:REQUESTS of each method, with commas")
    parser.add_argument("--methods", nargs="*", help="all by default")
    parser.add_argument("--counts", nargs="*", default=[], help="METHOD:REQUESTS, where they are not those of the world")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tie", type=float, default=1e-3)
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks of vLLM, each of which takes its heads")
    parser.add_argument("--spoil", choices=kit.SPOILS, help="a self-test: values go to other slots than their keys, or the last rows do not come; every method must fail")
    parser.add_argument("--options", default="", help="further options of `tributary serve`")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    make = kit.demo_request if args.model.resolve() == kit.DEMO else kit.prose_request
    counts = dict(name.split(":") for name in args.counts)
    proxy, rows = kit.Proxy(args.spoil), []
    llm = kit.engine(args.model, proxy.url, enable_prefix_caching=True, tensor_parallel_size=args.tensor_parallel)
    for world, requests in (map(int, part.split(":")) for part in args.worlds.split(",")):
        running = None if args.program.startswith("http") else kit.Service(
            args.program, args.model, ["--world-size", world, "--threads", 1, *args.options.split()], log="target/vllm-serve.log")
        url = running.url if running else args.program
        proxy.target, exact_answers = url, {}
        for method in methods_of(url, args.methods):
            proxy.rows = 0
            row = compare_method(llm, proxy, url, [make(number) for number in range(int(counts.get(method, requests)))], method, exact_answers, args, tokenizer)
            row.update(world=world, model=args.model.name, layer_rows_sent=proxy.rows)
            rows.append(row)
            print(f"{args.model.name}, world {world}, {method}: " + (f"not handed over: {row['refused']}" if row["refused"] else
                  f"{row['requests']} requests, {row['imported']} imported, {row['equal']} equal, {len(row['ties'])} near ties, {len(row['different'])} different"), flush=True)
            save(rows, args)
        if running:
            running.end()
    sys.exit(report(rows, args))


def told_apart(rows):
    """Answers of approximate methods, and those of them that differ from the exact one."""
    approximate = [row for row in rows if not row["refused"] and not row["exact"]]
    return sum(row["requests"] for row in approximate), sum(row["unlike_exact"] for row in approximate)


def save(rows, args):
    """After every row: a run of hours may be ended early."""
    if args.json:
        compared, unlike = told_apart(rows)
        args.json.write_text(json.dumps({"tokens": args.tokens, "tie": args.tie, "rows": rows, "unlike": unlike, "compared": compared}, indent=1))


def report(rows, args):
    table = [["model", "world", "method", "requests", "imported", "rows", "equal", "near ties", "different", "unlike exact", "verdict"]]
    for row in rows:
        if row["refused"]:
            table.append([row["model"], row["world"], row["method"], "-", "-", "-", "-", "-", "-", "-", f"not handed over: {row['refused']}"[:120]])
        else:
            table.append([*(row[name] for name in ("model", "world", "method", "requests", "imported", "rows", "equal")), len(row["ties"]), len(row["different"]),
                          row["unlike_exact"], "right" if row["right"] else "WRONG"])
    kit.print_table(table)
    for row in rows:
        for kind in ("ties", "different"):
            for one in row[kind]:
                print(f"{kind}: {row['model']}, world {row['world']}, {row['method']}, request {one['request']}, token {one['at']}, gap {one['gap']:.2e}: "
                      f"vLLM {one['vllm']!r}, Tributary {one['tributary']!r}, {one['import']}")
    judged = [row for row in rows if not row["refused"]]
    compared, unlike = told_apart(rows)
    wrong = [row for row in judged if not row["right"]]
    blind = compared > 0 and unlike < LEAST_DIFFERENT * compared
    print(f"approximate answers unlike the exact one: {unlike} of {compared}" + (f": fewer than {LEAST_DIFFERENT:.0%}, too few to judge" if blind else ""))
    print(f"{len(judged) - len(wrong)} passed, {len(wrong) + blind + (not judged)} failed")
    return 1 if wrong or blind or not judged else 0


if __name__ == "__main__":
    main()

"""A server that takes every request as a permissive OpenAI-compatible server does, and writes down what clients send.

    python3 tests/clients/record.py FILE.jsonl [--port 0] [--model demo]

Prints its address, then serves until it is ended. Each line of FILE is a request: method, path, the headers that matter, and the body
as it was sent, but for strings longer than 200 characters and token lists longer than 32, which are shortened. With it the bodies
in launch/tests/recorded are made anew: `make record-clients`. Standard library only.
"""

import argparse
import http.server
import json
import pathlib
import sys
import threading

HEADERS = ("content-type", "accept", "accept-encoding", "authorization", "user-agent", "expect", "transfer-encoding", "content-encoding", "connection")
LONGEST_TEXT, LONGEST_LIST = 200, 32


def shortened(value):
    """The same value with long texts and long lists of numbers cut."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT].rsplit(" ", 1)[0]
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        numbers = len(value) > LONGEST_LIST and all(isinstance(item, int) for item in value)
        return [shortened(item) for item in (value[:LONGEST_LIST] if numbers else value)]
    return value


def prompts(prompt):
    """The prompts of one request, each as a list of tokens or words."""
    if isinstance(prompt, str):
        return [prompt.split() or [""]]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return [one.split() if isinstance(one, str) else one for one in prompt]


def logprobs(tokens):
    texts = [f"{token} " for token in tokens]
    offsets = [sum(map(len, texts[:at])) for at in range(len(texts))]
    return {"tokens": texts, "token_logprobs": [None] + [-1.0] * (len(texts) - 1), "text_offset": offsets,
            "top_logprobs": [None] + [{text: -1.0} for text in texts[1:]]}


def answer(path, body, model):
    """The choices and usage of a whole answer."""
    usage = {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}
    head = {"id": "recorded-1", "created": 1, "model": model, "usage": usage}
    if path.endswith("chat/completions"):
        message = {"role": "assistant", "content": "lyon ."}
        return {**head, "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "length"}]}
    choices = []
    for index, tokens in enumerate(prompts(body.get("prompt", ""))):
        choice = {"index": index, "text": " lyon .", "finish_reason": "length", "logprobs": None}
        if body.get("logprobs") is not None:
            choice["logprobs"] = logprobs((list(tokens) if body.get("echo") else []) + ["lyon"])
        choices.append(choice)
    return {**head, "object": "text_completion", "choices": choices}


def events(path, body, model):
    """The parts of a stream."""
    chat = path.endswith("chat/completions")
    head = {"id": "recorded-1", "created": 1, "model": model, "object": "chat.completion.chunk" if chat else "text_completion"}
    tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 2
    for number in range(min(tokens, 64)):
        last = "length" if number == min(tokens, 64) - 1 else None
        if chat:
            delta = {"content": "lyon "} if number else {"role": "assistant", "content": "lyon "}
            choice = {"index": 0, "delta": delta, "finish_reason": last}
        else:
            choice = {"index": 0, "text": "lyon ", "finish_reason": last, "logprobs": None}
        yield {**head, "choices": [choice]}
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
        yield {**head, "choices": [], "usage": usage}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def reply(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.server.note(self, None)
        if self.path.startswith("/v1/models"):
            self.reply({"object": "list", "data": [{"id": self.server.model, "object": "model", "created": 1, "owned_by": "tributary"}]})
        else:
            self.reply({"status": "ok"})

    def read(self):
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        whole = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def do_POST(self):
        raw = self.read()
        body = json.loads(raw) if raw else {}
        self.server.note(self, body)
        if not self.path.endswith("completions"):
            return self.reply({"error": {"message": "there is nothing here", "type": "invalid_request_error"}}, 404)
        if not body.get("stream"):
            return self.reply(answer(self.path, body, self.server.model))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in [*map(json.dumps, events(self.path, body, self.server.model)), "[DONE]"]:
            data = f"data: {part}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


class Recorder(http.server.ThreadingHTTPServer):
    """The server; `seen` keeps requests that differ in more than their texts."""

    daemon_threads = True

    def __init__(self, file, port, model):
        super().__init__(("127.0.0.1", port), Handler)
        self.file, self.model, self.lock = file, model, threading.Lock()

    def note(self, request, body):
        headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
        line = {"method": request.command, "path": request.path, "headers": headers, "body": shortened(body)}
        with self.lock, self.file.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def start(file, port=0, model="demo"):
    """A recorder that serves from a thread of its own."""
    server = Recorder(pathlib.Path(file), port, model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="demo")
    options = parser.parse_args()
    recorder = Recorder(options.file, options.port, options.model)
    print(f"http://127.0.0.1:{recorder.server_port}", flush=True)
    try:
        recorder.serve_forever()
    except KeyboardInterrupt:
        sys.exit(130)

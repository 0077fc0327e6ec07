"""The clients: where each is installed, how it is run, and which of its interfaces are asked."""

import dataclasses
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/clients"
INSTALLED = ROOT / "target/clients"


@dataclasses.dataclass(frozen=True)
class Client:
    """One row of the table.

    `folder`: of `target/clients`, with a virtual environment or node's packages. `styles`: the interfaces of a tool that
    measures times with long prompts. `answers`: it asks the demo model, and its answers are checked. `streams`: its times count.
    """

    name: str
    folder: str
    script: str
    styles: tuple = ("",)
    answers: bool = False
    streams: bool = True

    def command(self):
        """The command's first words; None where the client is not installed."""
        if self.script.endswith(".mjs"):
            return ["node", INSTALLED / "node" / self.script] if (INSTALLED / "node/node_modules").is_dir() else None
        python = INSTALLED / self.folder / "bin/python"
        return [python, HERE / self.script] if python.exists() and (INSTALLED / self.folder / "packages").exists() else None

    def why_not(self):
        """Why it is not installed, as the installation left it."""
        reason = INSTALLED / self.folder / "reason"
        return reason.read_text().strip() if reason.exists() else "run `make clients-tools`"


CLIENTS = [
    Client("openai-python", "openai", "openai_python.py", answers=True),
    Client("openai-node", "node", "openai_node.mjs", answers=True),
    Client("ai-sdk", "node", "ai_sdk.mjs", answers=True),
    Client("langchain", "langchain", "langchain_run.py", answers=True),
    Client("llamaindex", "llamaindex", "llamaindex_run.py", answers=True),
    Client("litellm", "litellm", "litellm_run.py", answers=True),
    Client("haystack", "haystack", "haystack_run.py", answers=True),
    Client("lm-eval", "lm-eval", "lm_eval_run.py", answers=True, streams=False),
    Client("guidellm", "guidellm", "guidellm_run.py", ("/v1/chat/completions", "/v1/completions")),
    Client("inference-perf", "inference-perf", "inference_perf_run.py", ("completion",)),
    Client("aiperf", "aiperf", "aiperf_run.py", ("chat", "completions", "chat+usage")),
    Client("vllm-bench", "vllm", "vllm_bench.py", ("openai", "openai-chat", "openai+sampling", "openai-chat+sampling")),
]

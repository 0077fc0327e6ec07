"""Records what jinja2, as Hugging Face transformers sets it up, makes of small templates, for `coordinator/src/jinja/tests.rs`.

`cases.py` has the templates. Each is rendered in every context that it names; `expected.json` gets the text, or `null` where
jinja2 raises. Run from anywhere: python record.py. Needs transformers (recorded with jinja2 3.1.6 and transformers 5.24.0).
"""

import json
import pathlib

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

from cases import CASES, CONTEXTS

FOLDER = pathlib.Path(__file__).parent


def rendered(source: str, context: dict) -> str | None:
    try:
        return _compile_jinja_template(source).render(**context)
    except Exception as error:  # whatever it is, the template gives no text
        print(f"{source[:60]!r}: {type(error).__name__}: {error}")
        return None


def main() -> None:
    cases = []
    for name, source, *contexts in CASES:
        for context in contexts or ["plain"]:
            cases.append({"name": name, "context": context, "source": source, "expected": rendered(source, CONTEXTS[context])})
    made = {"by": f"jinja2 {jinja2.__version__}, transformers {transformers.__version__}", "contexts": CONTEXTS, "cases": cases}
    (FOLDER / "expected.json").write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum(case['expected'] is None for case in cases)} refused")


if __name__ == "__main__":
    main()

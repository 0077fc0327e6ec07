"""Tries the page at `/` as its users do, in a Chromium without a window.

    python3 tests/page/check.py http://127.0.0.1:8080 [--mock | --vision] [--key KEY] [--only CASE] [--pictures FOLDER]

The service at the address has the demo model and two ranks. With --mock it is `tests/page/mock.py`, and answers that a real service
rarely gives are tested too: errors of every kind, a key (--key), an answer that breaks off. With --vision it has a model that reads
pictures, and requests with pictures are tested alone. Prints a line a case; the last says that all passed. --pictures writes screenshots; `page-light.png` and `page-dark.png` among them, with few colours, are those in `docs`.
"""

import argparse
import base64
import json
import pathlib
import shlex
import time

from browser import CONTROL, ENTER, TAB, Browser

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = json.loads((ROOT / "examples/models/demo/chat.json").read_text())
DONE = "return document.querySelector('#stop').disabled && document.querySelectorAll('.card dl').length === arguments[0]"
# The least contrast of text that the WCAG ask for (level AA).
CONTRAST = 4.5

# What finds text of too little contrast.
FAINT = pathlib.Path(__file__).with_name("contrast.js").read_text()


class Check:
    def __init__(self, arguments):
        self.base, self.is_mock, self.key = arguments.base.rstrip("/"), arguments.mock, arguments.key
        self.pictures, self.only, self.has_vision = arguments.pictures, arguments.only, arguments.vision
        self.browser = Browser()
        # Answers with an error that the cases asked for: the browser logs each.
        self.errors = 0

    def fresh(self, view=""):
        """The page as somebody finds it who comes for the first time, but with the key, if there is one."""
        self.browser.open(f"{self.base}/{view}")
        if self.browser.run("const had = sessionStorage.getItem('form'); sessionStorage.removeItem('form'); return had"):
            self.browser.open("about:blank")
            self.browser.open(f"{self.base}/{view}")
        if self.key and not self.browser.run("return sessionStorage.getItem('key')"):
            self.errors += 1
            self.browser.until("a field for the key", "return !document.querySelector('#key-form').hidden")
            assert "401" in self.browser.text("#alert"), self.browser.text("#alert")
            self.browser.write("#key", self.key)
            self.browser.press(ENTER)
        self.browser.until("the methods of the service", "return document.querySelectorAll('#method option').length > 1")
        assert self.browser.text("#alert") == "", self.browser.text("#alert")

    def example(self, max_tokens=4):
        """Fills in the example; the words of its answer are `max_tokens`."""
        self.fresh()
        self.browser.click("#example")
        self.browser.write("#max_tokens", str(max_tokens))

    def ask(self, answers=1):
        self.browser.click("#ask")
        self.browser.until(f"{answers} whole answers", DONE, answers)
        assert self.browser.text("#alert") == "", self.browser.text("#alert")

    def tick(self, *names):
        """Chooses methods to compare with; their list is folded until one is chosen."""
        self.browser.run("document.querySelector('#others').open = true")
        for name in names:
            self.browser.click(f"#checks input[value={name}]")

    def facts(self):
        """What the first answer cost, by name."""
        return dict(self.browser.run("""return [...document.querySelector('.card dl').children]
            .map(each => [...each.children].map(child => child.textContent))"""))

    def picture(self, name, **how):
        if self.pictures:
            self.browser.picture(self.pictures / f"{name}.png", **how)

    def is_readable(self, what):
        seen = self.browser.run(FAINT, CONTRAST)
        assert seen["looked"] > 25 and not seen["found"], (what, seen)

    # Each method below is a case; its name and first line are what is printed.

    def case_example(self):
        """the example is that of the demo model"""
        self.example()
        texts = self.browser.run("return [...document.querySelectorAll('#documents textarea')].map(field => field.value)")
        assert texts == EXAMPLE["documents"], texts
        assert self.browser.run("return document.querySelector('#question').value") == EXAMPLE["messages"][0]["content"]

    def case_documents(self):
        """documents are added, dropped as files, split at blank lines, removed"""
        self.fresh()
        self.browser.run("""const files = new DataTransfer();
            files.items.add(new File(['a text\\n\\nof two paragraphs'], 'notes.txt', {type: 'text/plain'}));
            document.querySelector('#drop').dispatchEvent(new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}))""")
        self.browser.until("the dropped file", "return document.querySelector('#documents input').value === 'notes.txt'")
        self.browser.click("#drop summary")
        self.browser.write("#several", "one\nmore\n\n  \ntwo\n")
        self.browser.click("#split")
        self.browser.click("#add")
        self.browser.press("t", "h", "r", "e", "e")
        texts = "return [...document.querySelectorAll('#documents textarea')].map(field => field.value)"
        assert self.browser.run(texts) == ["a text\n\nof two paragraphs", "one\nmore", "two", "three"], self.browser.run(texts)
        self.browser.click("#documents li:nth-child(2) button")
        assert self.browser.run(texts)[1:] == ["two", "three"]
        names = "return [...document.querySelectorAll('#documents textarea')].map(field => field.ariaLabel)"
        assert self.browser.run(names) == [f"Text of document {number}" for number in (1, 2, 3)]

    def case_stream(self):
        """a request is answered as a stream"""
        self.example(300)
        if self.is_mock:
            self.browser.write("#question", "late")
        self.browser.run("""window.lengths = [];
            new MutationObserver(() => lengths.push(document.querySelector('.answer')?.textContent.length || 0))
                .observe(document.querySelector('#results'), {childList: true, subtree: true})""")
        self.ask()
        lengths = sorted(set(self.browser.run("return lengths")) - {0})
        assert len(lengths) >= 3, f"the answer came in one piece: {lengths}"
        assert self.browser.text(".answer").startswith("lyon"), self.browser.text(".answer")
        facts = self.facts()
        assert facts["Time to first token"].endswith("ms") and facts["Received between ranks"].endswith("iB"), facts
        assert facts["Chunk cache"] in ("cold", "partial", "warm") and "%" in facts["Tokens recomputed"], facts

    def case_context(self):
        """recomputed tokens are marked, by more than a colour, and scores shade them"""
        self.example()
        self.browser.choose("#reorder", "true")
        self.ask()
        sections = self.browser.run("""return [...document.querySelectorAll('.context section')]
            .map(each => [...each.children].map(child => child.textContent))""")
        assert [text.split() for _, text in sections] == [text.split() for text in EXAMPLE["documents"]], sections
        places = sorted(int(head.split("place ")[1].split()[0]) for head, _ in sections)
        assert places == list(range(1, 9)), "each document has a place in the layout"
        selected = sum(int(head.rsplit("· ", 1)[1].split()[0]) for head, _ in sections)
        said = self.facts()["Tokens recomputed"]
        assert selected > 0 and said.startswith(f"{selected} of "), (selected, said)
        style = "const style = getComputedStyle(document.querySelector('.context mark')); return [style.textDecorationLine, style.fontWeight]"
        assert self.browser.run(style) == ["underline", "600"], self.browser.run(style)
        shades = self.browser.run("""return new Set([...document.querySelectorAll('.context [class^=s]')]
            .map(each => getComputedStyle(each).backgroundColor)).size""")
        assert shades == 4, f"{shades} shades"

    def case_timeline(self):
        """the phases of each rank are a picture, and a table says the same"""
        self.example()
        self.ask()
        name = self.browser.run("return document.querySelector('.card .chart').ariaLabel")
        assert self.browser.count(".card .chart .box") >= 8 and "2 ranks" in name, name
        ranks = self.browser.run("""return [...document.querySelectorAll('[aria-label="Phases of each rank"] tbody tr')]
            .map(row => row.textContent)""")
        assert {row[0] for row in ranks} == {"0", "1"} and any("chunk prefill" in row for row in ranks), ranks
        fits = self.browser.run("""const right = node => node.getBoundingClientRect().right;
            const edge = right(document.querySelector('.card .chart'));
            return [...document.querySelectorAll('.card .chart .box')].every(each => right(each) <= edge + 1)""")
        assert fits, "a bar leaves its picture"

    def case_compare(self):
        """the same request by other methods beside it"""
        self.example()
        self.tick("full", "none")
        self.ask(3)
        rows = self.browser.run("return [...document.querySelectorAll('#results table')][0].tBodies[0].innerText.split('\\n')")
        assert [row.split("\t")[0] for row in rows] == ["infoflow", "full (reference)", "none"], rows
        assert all(("+" in row or "−" in row) and "×" in row for row in (rows[0], rows[2])) and "×" not in rows[1], rows
        texts = self.browser.run("return [...document.querySelectorAll('.answer')].map(each => each.textContent)")
        for at in (0, 2):
            assert rows[at].endswith("the same") == (texts[at] == texts[1]), (rows, texts)
        assert texts[2] != texts[1], "chunks as they are do not answer this question"
        assert self.browser.count(".context") == 1 and self.browser.count("#marks option") == 3, "one context for all"
        axes = self.browser.run("""return [...document.querySelectorAll('article .chart')]
            .map(each => [...each.querySelectorAll('.axis')].map(tick => tick.textContent + tick.getAttribute('x')).join())""")
        assert len(axes) == 3 and len(set(axes)) == 1, f"bars beside each other have one axis: {axes}"
        marked = self.browser.count("article:nth-child(3) ins")
        assert marked > 0 and f"{marked} of" in rows[2], (marked, rows)
        self.is_readable("compared")
        self.picture("compare-light")

    def case_methods(self):
        """methods are grouped, and the chosen one is explained in a line"""
        self.fresh()
        groups = self.browser.run("return [...document.querySelectorAll('#method optgroup')].map(each => each.label)")
        assert len(groups) == 3 and groups[0].startswith("Exact"), groups
        self.browser.choose("#method", "full")
        line = self.browser.text("#about-method")
        assert line.startswith("full computes: ") and len(line) > 20, line
        assert "documents" in self.browser.text("#about")

    def case_reload(self):
        """a reload keeps what was typed, and says so"""
        self.example(7)
        self.tick("relay")
        self.browser.write("#question", "let vdx =")
        self.browser.open("about:blank")
        self.browser.open(f"{self.base}/")
        self.browser.until("the choices of before", "return document.querySelector('#checks input[value=relay]')?.checked")
        fields = self.browser.run("return ['question', 'max_tokens'].map(id => document.querySelector(`#${id}`).value)")
        assert fields == ["let vdx =", "7"] and self.browser.count("#documents li") == 8, fields
        assert "here again" in self.browser.text("#say"), self.browser.text("#say")

    def case_curl(self):
        """the request is copied as a command that asks the same"""
        self.example()
        self.browser.write("#question", "it's a \"test\"")
        self.browser.click("#copy")
        self.browser.until("the command", "return !document.querySelector('#curl').hidden")
        words = shlex.split(self.browser.run("return document.querySelector('#curl').value").replace("\\\n", ""))
        body = json.loads(words[words.index("-d") + 1])
        assert words[:3] == ["curl", "-s", f"{self.base}/v1/chat/completions"] and "stream" not in body, words
        assert body["messages"][0]["content"] == "it's a \"test\"" and len(body["documents"]) == 8, body

    def case_error(self):
        """an error is a sentence that says what to do, at the field"""
        self.example()
        self.browser.write("#temperature", "-1")
        self.browser.click("#ask")
        self.errors += 1
        self.browser.until("an error", "return document.querySelector('#alert').textContent")
        said = self.browser.text("#alert")
        assert "(400)" in said and "temperature" in said and "Change" in said, said
        assert self.browser.run("return document.activeElement.id") == "temperature"
        assert self.browser.run("return document.querySelector('#temperature').ariaInvalid") == "true"
        self.is_readable("error")
        self.picture("error-light", whole=False)
        self.browser.write("#temperature", "warm")
        self.browser.press(ENTER)
        self.browser.until("another error", "return document.querySelector('#alert').textContent.includes('must be a number')")
        self.browser.write("#temperature", "0")
        self.ask()
        self.browser.click("#clear")
        self.browser.press((CONTROL, ENTER))
        self.browser.click("#ask")
        self.browser.until("a question is asked for", "return document.querySelector('#alert').textContent.includes('no question')")

    def case_stop(self):
        """a running request is stopped"""
        self.example(3000)
        if self.is_mock:
            self.browser.write("#question", "slow")
        self.browser.click("#ask")
        self.browser.until("the first words", "return document.querySelector('.answer')?.textContent.length > 8")
        self.browser.click("#stop")
        self.browser.until("it says so", "return document.querySelector('#say').textContent.startsWith('Stopped')")
        length = len(self.browser.text(".answer"))
        time.sleep(0.6)
        assert len(self.browser.text(".answer")) == length, "words come after the stop"
        assert self.browser.text("#alert") == "" and self.browser.run("return document.querySelector('#stop').disabled")
        self.browser.write("#question", EXAMPLE["messages"][0]["content"])
        self.browser.write("#max_tokens", "4")
        self.ask()

    def case_watch(self):
        """the second view shows ranks, queue, cache and the last requests, and looks again"""
        self.example()
        self.ask()
        self.browser.click("#to-watch")
        self.browser.until("two ranks", "return document.querySelectorAll('#watch .up').length === 2")
        assert "2 of 2" in self.browser.text(".tiles") and "running" in self.browser.text(".tiles")
        ended = self.browser.count("#watch .card:last-child tbody tr")
        assert ended >= 1 and self.browser.count("#watch .chart rect") >= 1
        lies = self.browser.run("""return [...document.querySelectorAll('#watch [aria-label="Where chunks lie"] tbody tr')]
            .map(row => [...row.children].map(cell => cell.textContent))""")
        assert [row[0] for row in lies] == (["memory", "disk", "remote"] if self.is_mock else ["memory"]), lies
        assert "%" in lies[0][3] and lies[0][4:] == ["–"] * 3, lies
        if self.is_mock:
            assert "MiB/s" in lies[1][4] and lies[1][6] == "1 corrupt, 12 full" and lies[2][1:4] == ["–", "0", "–"], lies
        seen = self.browser.text("#seen")
        self.browser.until("it looks again", "return document.querySelector('#seen').textContent !== arguments[0]", seen)
        self.browser.click("#pause")
        time.sleep(0.3)
        seen = self.browser.text("#seen")
        time.sleep(2.5)
        assert self.browser.text("#seen") == seen, "it looks while it is paused"
        self.is_readable("watch")
        self.picture("watch-light")

    def case_keyboard(self):
        """from the address to an answer by Tab and Enter, the focus always seen"""
        self.fresh()
        on = "return (node => node.id || node.ariaLabel || node.tagName)(document.activeElement)"

        def walk(target):
            """Presses Tab until this has the focus."""
            for _ in range(60):
                self.browser.press(TAB)
                outline = self.browser.run("""const style = getComputedStyle(document.activeElement);
                    return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2""")
                assert outline, f"no outline around {self.browser.run(on)}"
                if self.browser.run(on) == target:
                    return
            raise AssertionError(f"Tab does not reach {target}")

        walk("skip")
        self.browser.press(ENTER)
        assert self.browser.run(on) == "view"
        walk("example")
        self.browser.press(ENTER)
        assert self.browser.run(on) == "question", "the question follows the example"
        walk("ask")
        self.browser.press(ENTER)
        self.browser.until("a whole answer", DONE, 1)
        assert self.browser.run(on) == "ask", "the focus stays where it was"
        assert "answered" in self.browser.text("#say")
        walk("Answer")
        walk("Context with recomputed tokens")

    def case_names(self):
        """every control has a name that a screen reader says"""
        self.example()
        self.ask()
        for view in ("#to-try", "#to-watch"):
            self.browser.click(view)
            if view == "#to-watch":
                # Each look makes the picture and the rows anew.
                self.browser.click("#pause")
                time.sleep(0.5)
            controls = self.browser.run("""
                return [...document.querySelectorAll('a, button, input, select, textarea, [role=region], [role=img]')]
                    .filter(node => node.checkVisibility() && !node.closest('[aria-hidden=true]'))""")
            assert len(controls) > 5, view
            for control in controls:
                named = self.browser.spoken_name(control).strip()
                assert named, self.browser.run("return arguments[0].outerHTML.slice(0, 200)", control)
        numbers = self.browser.run("return [...document.querySelectorAll('[id]')].map(node => node.id)")
        assert len(set(numbers)) == len(numbers), "two elements have one id"

    def case_narrow(self):
        """400 pixels suffice: nothing is beyond the edge"""
        self.browser.width(400)
        for scheme in ("light", "dark"):
            self.browser.prefers(color_scheme=scheme)
            self.example()
            self.tick("full")
            self.ask(2)
            for view in ("try", "watch"):
                self.browser.click(f"#to-{view}")
                time.sleep(0.3)
                # A table scrolls in its own region, which does not.
                beyond = self.browser.run("""return [...document.querySelectorAll('body *')].filter(node => node.checkVisibility()
                    && !node.closest('.wide *, .hidden, .skip, svg') && node.getBoundingClientRect().right > innerWidth + 1)
                    .map(node => node.outerHTML.slice(0, 80))""")
                wide = self.browser.run("return document.documentElement.scrollWidth")
                assert wide <= 400 and not beyond, (view, wide, beyond)
                self.is_readable(f"{view} narrow {scheme}")
                self.picture(f"{view}-narrow-{scheme}")

    def case_dark(self):
        """dark where the system is, and as readable"""
        self.browser.prefers(color_scheme="light")
        self.example()
        ground = "return getComputedStyle(document.body).backgroundColor"
        light = self.browser.run(ground)
        self.tick("full", "relay")
        self.ask(3)
        self.is_readable("try light")
        self.picture("page-light", few_colours=True)
        self.browser.prefers(color_scheme="dark")
        dark = self.browser.run(ground)
        assert sum(map(int, dark[4:-1].split(","))) < 150 < 600 < sum(map(int, light[4:-1].split(","))), (dark, light)
        self.is_readable("try dark")
        self.picture("page-dark", few_colours=True)
        self.browser.click("#to-watch")
        time.sleep(0.3)
        self.is_readable("watch dark")
        self.picture("watch-dark")

    def case_still(self):
        """nothing moves where the user wants none"""
        moving = """const node = document.createElement('div');
            node.className = 'answer on';
            document.querySelector('#results').append(node);
            return getComputedStyle(node, '::after').animationName"""
        self.fresh()
        assert self.browser.run(moving) == "beat"
        self.browser.prefers(reduced_motion="reduce")
        assert self.browser.run(moving) == "none"

    def mock_every_error(self):
        """each status says what to do, and so does an answer that breaks off"""
        self.example()
        words = {"400": "Change “Text of document 4” (documents[3].text)", "413": "Shorten", "429": "Wait 7 seconds", "500": "log", "503": "Wait 7 seconds", "504": "fewer"}
        for number, word in words.items():
            self.browser.write("#question", f"refuse {number}")
            self.browser.click("#ask")
            self.errors += 1
            shown = "return document.querySelector('#alert').textContent.includes(`(${arguments[0]})`)"
            self.browser.until(f"the error {number}", shown, number)
            assert word in self.browser.text("#alert"), self.browser.text("#alert")
            if number == "400":
                assert self.browser.run("return document.activeElement.ariaLabel") == "Text of document 4"
        self.browser.write("#question", "break")
        self.browser.click("#ask")
        self.browser.until("the break", "return document.querySelector('#alert').textContent.includes('broke off: rank 1 has failed')")
        assert self.browser.text(".answer").strip() == "lyon .", "what had come stays"

    def mock_markup(self):
        """a text with markup in it stays a text"""
        self.fresh()
        self.browser.write("#documents textarea", "<img src=x onerror=document.title=1> <b>bold</b>")
        self.browser.write("#question", "q")
        self.ask()
        assert self.browser.count(".context img, .context p b") == 0 and "<img" in self.browser.text(".context")

    def drop(self, *files):
        """Drops files on the documents: name, kind and bytes of each."""
        self.browser.run("""const [files] = arguments, data = new DataTransfer();
            for (const [name, type, bytes] of files) {
              data.items.add(new File([Uint8Array.from(atob(bytes), letter => letter.charCodeAt(0))], name, {type}));
            }
            document.querySelector('#drop').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}))""",
                         [(name, kind, base64.b64encode(data).decode()) for name, kind, data in files])

    def vision_request(self):
        """pictures are dropped, sent, and shown with their recomputed places lit and the others dimmed"""
        self.fresh()
        golden = ROOT / "tests/golden/vlm"
        self.drop(("notes.txt", "text/plain", b"the first page shows a map"), ("c.png", "image/png", (golden / "c.png").read_bytes()),
                  ("a.png", "image/png", (golden / "a.png").read_bytes()), ("moving.gif", "image/gif", b"GIF89a\0\0"))
        self.browser.until("two pictures", "return document.querySelectorAll('#documents img').length === 2")
        assert "1 file left out" in self.browser.text("#alert"), self.browser.text("#alert")
        self.browser.write("#documents li:nth-child(2) input", "a page")
        self.browser.write("#question", "which is red?")
        self.browser.write("#max_tokens", "4")
        self.browser.open("about:blank")
        self.browser.open(f"{self.base}/")
        self.browser.until("the pictures of before", "return document.querySelectorAll('#documents img').length === 2")
        self.browser.until("the methods of the service", "return document.querySelectorAll('#method option').length > 1")
        self.browser.choose("#method", "infoflow")
        self.ask()
        names = self.browser.run("return [...document.querySelectorAll('.context .seen')].map(each => each.ariaLabel)")
        # The grids of the two pictures, 6 x 9 and 4 x 6.
        assert [name.split(" of ")[1] for name in names] == ["54 places recomputed", "24 places recomputed"], names
        assert [name[:10] for name in names] == ["Picture 1:", "Picture 2:"], names
        cells = self.browser.run("""return [...document.querySelectorAll('.context .seen')].map(each =>
            ['lit', 'dim'].map(kind => (each.querySelector(`.${kind}`).getAttribute('d').match(/M/g) || []).length))""")
        assert [sum(pair) for pair in cells] == [54, 24], cells
        assert [str(lit) for lit, _ in cells] == [name.split(": ")[1].split()[0] for name in names], (cells, names)
        assert sum(lit for lit, _ in cells) > 0, "the method selects places of pictures"
        shown = self.browser.run("""const own = [...document.querySelectorAll('#documents img')].map(each => each.src);
            const answered = [...document.querySelectorAll('.seen image')].map(each => each.getAttribute('href'));
            return own.length === 2 && own.every((each, at) => each === answered[at])""")
        assert shown, "the pictures of the answer are those of the request, in their order"
        assert self.facts()["Prompt tokens"].endswith("78 of pictures"), self.facts()
        self.is_readable("pictures")
        self.picture("vision-light")
        self.browser.prefers(color_scheme="dark")
        self.is_readable("pictures dark")
        self.picture("vision-dark")

    def vision_exact(self):
        """an exact method dims nothing, and a long request is copied as the command's input"""
        self.fresh()
        self.drop(("f.png", "image/png", (ROOT / "tests/golden/vlm/f.png").read_bytes()))
        self.browser.until("a picture", "return document.querySelectorAll('#documents img').length === 1")
        self.browser.write("#question", "which is red?")
        self.browser.write("#max_tokens", "2")
        self.browser.choose("#method", "full")
        self.ask()
        assert self.browser.count(".seen image") == 1 and self.browser.count(".seen path") == 0
        self.browser.click("#copy")
        self.browser.until("the command", "return !document.querySelector('#curl').hidden")
        body = self.browser.run("return document.querySelector('#curl').value")
        sent = body.split("-d @- <<'END'\n")[1].removesuffix("\nEND") if "<<'END'" in body else shlex.split(body.replace("\\\n", ""))[-1]
        assert json.loads(sent)["documents"][0]["image"].startswith("data:image/png;base64,"), body[:400]

    def vision_refused(self):
        """a damaged picture is told at its document"""
        self.fresh()
        whole = (ROOT / "tests/golden/vlm/d.png").read_bytes()
        self.drop(("cut.png", "image/png", whole[:len(whole) // 2]))
        self.browser.until("a picture", "return document.querySelectorAll('#documents img').length === 1")
        self.browser.write("#question", "which is red?")
        self.browser.click("#ask")
        self.errors += 1
        said = self.browser.until("an error", "return document.querySelector('#alert').textContent")
        assert "(400)" in said and "PNG" in said, said

    def run(self):
        kinds = ("vision_",) if self.has_vision else ("case_", "mock_") if self.is_mock else ("case_",)
        try:
            for name in [name for name in vars(Check) if name.startswith(kinds) and self.only in (None, name.split("_", 1)[1])]:
                self.browser.developer("Emulation.clearDeviceMetricsOverride")
                self.browser.prefers(color_scheme="light")
                began = time.monotonic()
                getattr(self, name)()
                print(f"{name.split('_', 1)[1]:12} {getattr(Check, name).__doc__} ({time.monotonic() - began:.1f} s)", flush=True)
            self.quiet()
        finally:
            self.browser.close()
        print("all passed")

    def quiet(self):
        """The console is empty but for the errors that were asked for, and no other host got a request."""
        self.browser.listen()
        logged = [entry for entry in self.browser.console if entry["level"] != "DEBUG"]
        refused = [entry for entry in logged if entry["source"] == "network" and "responded with a status of" in entry["message"]]
        assert logged == refused and len(refused) == self.errors, (self.errors, logged)
        strange = {url for url in self.browser.asked if not url.startswith((f"{self.base}/", "data:", "about:", "chrome:"))}
        assert len(self.browser.asked) > 1 and not strange, strange
        print(f"no word on the console, {len(self.browser.asked)} requests, all to {self.base}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("--mock", action="store_true")
    parser.add_argument("--vision", action="store_true")
    parser.add_argument("--key")
    parser.add_argument("--only", help="a case by its name")
    parser.add_argument("--pictures", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    Check(arguments).run()


if __name__ == "__main__":
    main()

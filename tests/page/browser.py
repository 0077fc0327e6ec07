"""A Chromium without a window, driven through chromedriver by the W3C's WebDriver protocol and nothing but the standard library."""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from picture import smaller

# The longest wait for anything on a page, in seconds.
PATIENCE_S = 20
# The name under which the protocol hands out elements.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
# No proxy stands between this machine and itself.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TAB, ENTER, CONTROL = "\ue004", "\ue007", "\ue009"


class Browser:
    """One window. What it logs is kept: `console`, and the addresses that it asked for, `asked`."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="page-")
        # It stays in this process's group, so that the end of the group, as by a test's limit of time, ends the browser too.
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                       env={**os.environ, "HOME": self.home})
        self.console, self.asked = [], []
        try:
            self.begin()
        except BaseException:
            self.end()
            raise

    def begin(self):
        """Finds the driver and opens the window."""
        for line in self.driver.stdout:
            port = re.search(r"successfully on port (\d+)", line)
            if port:
                break
        self.root = f"http://127.0.0.1:{port.group(1)}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-lcd-text",
                     "--no-first-run",
                     f"--user-data-dir={self.home}/profile", "--window-size=1280,900", "--force-device-scale-factor=1",
                     # Nothing but this machine can be reached, whatever a page asks for.
                     "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
        wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        made = self.send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.root += f"/session/{made['sessionId']}"

    def close(self):
        try:
            self.send("DELETE", "")
        finally:
            self.end()

    def end(self):
        """Ends the driver, and the browser with it."""
        self.driver.terminate()
        self.driver.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def send(self, verb, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=verb)
        try:
            with DIRECT.open(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            said = json.load(error)["value"]
            raise AssertionError(f"{verb} {path}: {said['error']}: {said['message']}") from None

    def open(self, address):
        """Loads a page, also where only the part after its # differs."""
        self.send("POST", "/url", {"url": "about:blank"})
        self.send("POST", "/url", {"url": address})

    def run(self, script, *arguments):
        """What a piece of JavaScript returns."""
        return self.send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def developer(self, command, **parameters):
        """A command of Chromium's own protocol for developers."""
        return self.send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def width(self, pixels, height=900):
        self.developer("Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=False)

    def prefers(self, **features):
        """Settings of the user's system: `color_scheme="dark"`."""
        told = [{"name": "prefers-" + name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.developer("Emulation.setEmulatedMedia", features=told)

    def element(self, selector):
        return {ELEMENT: self.send("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]}

    def click(self, selector):
        self.send("POST", f"/element/{self.element(selector)[ELEMENT]}/click", {})

    def write(self, selector, text):
        """Replaces the text of a field as a user does."""
        number = self.element(selector)[ELEMENT]
        self.send("POST", f"/element/{number}/clear", {})
        if text:
            self.send("POST", f"/element/{number}/value", {"text": text})

    def choose(self, selector, value):
        self.run("const [node, value] = arguments; node.value = value; node.dispatchEvent(new Event('change', {bubbles: true}))",
                 self.element(selector), value)

    def press(self, *keys):
        """Presses keys one after the other, those of a tuple together."""
        steps = []
        for key in keys:
            held = key if isinstance(key, tuple) else (key,)
            steps += [{"type": "keyDown", "value": each} for each in held]
            steps += [{"type": "keyUp", "value": each} for each in reversed(held)]
        self.send("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def spoken_name(self, element):
        """The name that a screen reader says."""
        return self.send("GET", f"/element/{element[ELEMENT]}/computedlabel")

    def until(self, what, script, *arguments):
        """Waits until a piece of JavaScript returns something true, and returns it."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = self.run(script, *arguments)
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"not within {PATIENCE_S} s: {what}; the page says: {self.text('#alert')!r} {self.text('#say')!r}")

    def picture(self, path, whole=True, few_colours=False):
        """Writes what is seen, or the whole page, as PNG."""
        width, height, seen, top = self.run("return [innerWidth, document.documentElement.scrollHeight, innerHeight, scrollY]")
        clip = {"x": 0, "y": 0 if whole else top, "width": width, "height": height if whole else seen, "scale": 1}
        data = self.developer("Page.captureScreenshot", format="png", captureBeyondViewport=whole, clip=clip)["data"]
        data = base64.b64decode(data)
        path.write_bytes(smaller(data) if few_colours else data)

    def listen(self):
        """Reads what the browser has logged since the last time."""
        self.console += self.send("POST", "/se/log", {"type": "browser"})
        for entry in self.send("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])

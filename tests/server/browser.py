"""A headless Chromium over its debugging pipe. Only the standard library; chromium() is None where there is none."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

from harness import PATIENCE


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab. What the page logs as errors (exceptions, blocked loads) is in `problems`."""

    def __init__(self, width=1280, height=900):
        self.profile = tempfile.mkdtemp(prefix="sluice-browser-")
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--remote-debugging-pipe", f"--user-data-dir={self.profile}", f"--window-size={width},{height}"]
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        self.process = subprocess.Popen(["bash", "-c", shell, "bash", chromium(), *arguments],
                                        pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.out, self.inp = os.fdopen(to_write, "wb", 0), os.fdopen(from_read, "rb", 0)
        self.rest, self.next, self.session, self.problems = b"", 1, None, []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.out.close()
        self.inp.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method, **params):
        message = {"id": self.next, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.next += 1
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def receive(self):
        while b"\0" not in self.rest:
            piece = self.inp.read(1 << 16)
            if not piece:
                raise RuntimeError("the browser is gone")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])

    def before(self, script):
        """Runs before the scripts of every page that is opened from now on."""
        self.send("Page.addScriptToEvaluateOnNewDocument", source=script)

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def reload(self):
        self.js("window.before = true")
        self.send("Page.reload")
        self.until("!window.before && document.readyState === 'complete'")

    def js(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "script failed"))
        return result["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            if self.js(f"!!({expression})"):  # elements have no value here
                return
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {expression}")

    def click(self, selector):
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector, text):
        self.js(f"document.querySelector({json.dumps(selector)}).focus()")
        self.send("Input.insertText", text=text)

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=code or key,
                      windowsVirtualKeyCode={"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38,
                                             "ArrowRight": 39, "ArrowDown": 40}.get(key, 0),
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def move(self, selector):
        """The mouse over the middle of an element."""
        x, y = self.js(f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                       " return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def downloads(self, folder):
        """Files that the page offers are left in `folder`."""
        self.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        data = self.send("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

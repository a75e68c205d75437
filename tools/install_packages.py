"""Runs "pip install" with the arguments given, and shows how far it is on one line instead of several hundred.

Usage: python tools/install_packages.py WHAT PIP_ARGUMENT...

Off a terminal it prints a line every ten seconds. When pip fails, its last lines and the place of the whole log follow.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

REPORT_INTERVAL = 10.0  # seconds between lines when standard output is no terminal
TAIL_LINES = 30


def stage(line: str, collected: set[str]) -> str | None:
    """Return what a line of pip's output says about progress; None when it says nothing."""
    words = line.split()
    if line.startswith(("Collecting ", "Requirement already satisfied: ")):
        name = words[1] if words[0] == "Collecting" else words[3]
        name = re.split(r"[^A-Za-z0-9._-]", name)[0]
        collected.add(name)
        return f"{len(collected)} packages found, {name.split('=')[0]}"
    if line.startswith("Building wheel"):
        return f"building {words[3]}" if len(words) > 3 else "building"
    if line.startswith("Installing collected packages"):
        return f"installing {line.count(',') + 1} packages"
    return None


def main(what: str, arguments: list[str]) -> int:
    """Install, report, and return pip's exit status."""
    log_path = Path(sys.prefix) / ".stamps" / "pip.log"
    log_path.parent.mkdir(exist_ok=True)
    terminal = sys.stdout.isatty()
    started = last_report = time.monotonic()
    collected: set[str] = set()
    lines: list[str] = []
    print(f"Installing {what}", flush=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        *arguments,
    ]
    with (
        log_path.open("a", encoding="utf-8") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as pip,
    ):
        for line in pip.stdout or ():
            log.write(line)
            lines.append(line.rstrip())
            news = stage(line.strip(), collected)
            now = time.monotonic()
            if news and terminal:
                print(f"\r\033[K  {now - started:4.0f} s  {news}", end="", flush=True)
            elif news and (now - last_report > REPORT_INTERVAL or news.startswith("installing")):
                last_report = now
                print(f"  {now - started:4.0f} s  {news}", flush=True)
    if terminal:
        print("\r\033[K", end="")
    if pip.returncode:
        print("\n".join(lines[-TAIL_LINES:]), file=sys.stderr)
        print(f"pip could not install {what}; the whole log is {log_path}.", file=sys.stderr)
    else:
        print(f"  {time.monotonic() - started:4.0f} s  done", flush=True)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

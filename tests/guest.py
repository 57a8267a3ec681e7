"""Runs a command of Dragoman by a template that the caller is no child of, and ends as it ends.

`guest.py TEMPLATE -m MODULE ...` is `python -m MODULE ...`. An ssh server runs `guest.py TEMPLATE`,
and the command that was asked for, which may be any, is in a variable.
"""

import json
import os
import shlex
import signal
import socket
import sys
from pathlib import Path

from forked import namespaces_of

AGENT = ["-m", "dragoman.cluster.agent"]


def main() -> None:
    place, *words = sys.argv[1:]
    folder, home = str(Path.cwd()), ""
    if not words:
        command = os.environ.pop("SSH_ORIGINAL_COMMAND")
        words = shlex.split(command)
        if words[-2:] != AGENT:
            os.execv("/bin/sh", ["sh", "-c", command])
        _, folder, *_ = words  # cd FOLDER && exec PYTHON -m dragoman.cluster.agent
        words, home = AGENT, "self"
    request = {
        "words": words,
        "folder": folder,
        "variables": dict(os.environ),
        "new_session": False,
        "end_with_us": False,
    }
    template = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template.connect(place)
    with namespaces_of(home) as namespaces:
        socket.send_fds(template, [json.dumps(request).encode()], [0, 1, 2, *namespaces])
    for number in range(3):
        os.close(number)
    code = int(template.recv(16))
    if code < 0:
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)


if __name__ == "__main__":
    main()

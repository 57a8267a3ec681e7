"""What the ssh server of a test's machine runs instead of a shell, to fork agents from a template.

machine_shell.py TEMPLATE, with the command asked for in the variable that sshd sets
"""

import json
import os
import shlex
import signal
import socket
import sys

from forked import namespaces_of


def main() -> None:
    command = os.environ.pop("SSH_ORIGINAL_COMMAND")
    words = shlex.split(command)
    if words[-2:] != ["-m", "dragoman.cluster.agent"]:
        os.execv("/bin/sh", ["sh", "-c", command])
    _, folder, *_ = words  # cd FOLDER && exec PYTHON -m dragoman.cluster.agent
    request = {
        "words": words[-2:],
        "folder": folder,
        "variables": dict(os.environ),
        "new_session": False,
        "end_with_us": False,
    }
    template = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template.connect(sys.argv[1])
    with namespaces_of("self") as namespaces:
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

"""The exit code 255 of ssh stands for many failures, which its last words tell apart."""

import pytest

from orchestra.launch.ssh_failures import Failure, explained

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key for [10.0.0.7]:2222 has changed and you have requested strict checking.
Host key verification failed."""
UNKNOWN = """\
No ED25519 host key is known for [10.0.0.7]:2222 and you have requested strict checking.
Host key verification failed."""


@pytest.mark.parametrize(
    ("code", "lines", "reason", "transient"),
    [
        (255, "ssh: connect to host 10.0.0.7 port 22: Connection refused", "Connection refused", True),
        (255, "ssh: connect to host 10.0.0.7 port 22: No route to host", "No route to host", True),
        (255, "ssh: connect to host cpu1 port 22: Connection timed out", "Connection timed out", True),
        (255, "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.7 port 22",
         "Connection reset by 10.0.0.7 port 22", True),
        (255, "Connection closed by 10.0.0.7 port 2222", "Connection closed by 10.0.0.7 port 2222", True),
        (255, "ssh: Could not resolve hostname cpu9: Name or service not known",
         "Could not resolve hostname cpu9: Name or service not known", False),
        (255, "ssh: Could not resolve hostname cpu9: Temporary failure in name resolution",
         "Could not resolve hostname cpu9: Temporary failure in name resolution", True),
        (255, "me@10.0.0.7: Permission denied (publickey).", "Permission denied (publickey)", False),
        (255, "Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures",
         "Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures", False),
        (255, UNKNOWN, "its host key is not known: log in once, with: ssh -p 2222 cpu1", False),
        (255, CHANGED, "its host key has changed; if that is right: ssh-keygen -R cpu1", False),
        (255, "Can't open user config file nothing: No such file or directory",
         "Can't open user config file nothing: No such file or directory", False),
        (255, "", "ssh failed without a word", False),
        (1, "This account is currently not available.",
         "the login shell exited with code 1 before the agent: This account is currently not available.", False),
    ],
)  # fmt: skip
def test_a_failure_before_the_log_in_is_named_by_what_ssh_says(
    code: int, lines: str, reason: str, transient: bool
) -> None:
    failure = explained(code, lines.splitlines(), "-p 2222 cpu1", name="cpu1", logged_in=False)
    assert failure == Failure(reason, None, again=transient, transient=transient)


@pytest.mark.parametrize(
    ("code", "lines", "reason", "again"),
    [
        (127, "sh: 1: exec: /opt/py: not found",
         "its Python cannot be started: sh: 1: exec: /opt/py: not found; see --python and --setup", False),
        (126, "", "its Python cannot be started; see --python and --setup", False),
        (1, "/usr/bin/python3: No module named orchestra",
         "orchestra is not installed for /usr/bin/python3; see --python and --setup", False),
        (2, "orchestra: no token", "the agent exited with code 2: orchestra: no token", False),
        (76, "", "the agent exited with code 76", False),
        (77, "", "the agent exited with code 77", False),
        (75, "", "the agent exited with code 75", True),
        (1, "MemoryError", "the agent exited with code 1: MemoryError", True),
        (0, "", "the agent ended", True),
    ],
)  # fmt: skip
def test_an_agent_that_ended_is_named_by_its_exit_code(code: int, lines: str, reason: str, again: bool) -> None:
    assert explained(code, lines.splitlines(), "cpu1", name="cpu1", logged_in=True) == Failure(
        reason, code, again=again
    )


@pytest.mark.parametrize(
    ("code", "lines", "reason"),
    [
        (255, "Timeout, server 10.0.0.7 not responding.",
         "the connection broke: Timeout, server 10.0.0.7 not responding"),
        (255, "client_loop: send disconnect: Broken pipe",
         "the connection broke: client_loop: send disconnect: Broken pipe"),
        (255, "", "the agent was killed by a signal, or ssh ended"),
        (255, "the last thing it did", "the agent was killed by a signal, or ssh ended: the last thing it did"),
        (-9, "", "ssh was killed by SIGKILL"),
    ],
)  # fmt: skip
def test_a_connection_that_ends_after_the_log_in_may_be_made_again(code: int, lines: str, reason: str) -> None:
    assert explained(code, lines.splitlines(), "cpu1", name="cpu1", logged_in=True) == Failure(reason, None, again=True)

"""Servers for the tests: `HERDWICK` names the binary."""

import os
import re
import subprocess

import pytest


class Server:
    """A herdwick that can be stopped, and started again at its port."""

    def __init__(self, folder):
        self.folder, self.port = folder, 0
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [os.environ["HERDWICK"], "serve", "-l", "127.0.0.1", "-p", str(self.port), "-u", "root"]
            + ["-t", "1", "-m", "64", "--shm-dir", str(self.folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", line).group(1))
        self.address = ("127.0.0.1", self.port)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def new_server(tmp_path):
    servers = []

    def new():
        servers.append(Server(tmp_path))
        return servers[-1]

    yield new
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture(params=["auto", "tcp"])
def transport(request):
    return request.param

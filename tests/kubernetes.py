"""Checks packaging/kubernetes: kubernetes.sh calls it in namespaces of its own.

kubernetes.py KUSTOMIZE BINARY
"""

import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

import kubernetes_validate
import yaml

KUSTOMIZE, BINARY = sys.argv[1:]
ROOT = pathlib.Path("packaging/kubernetes").resolve()
COMPONENTS = sorted(path.name for path in (ROOT / "components").iterdir())
# The oldest whose schemas the package has, and the newest.
VERSIONS = [kubernetes_validate.utils.all_versions()[end] for end in (0, -1)]
# The entry point of the image, in front of the arguments of the pod.
ENTRYPOINT = json.loads(
    re.search(r"^ENTRYPOINT (.*)$", pathlib.Path("packaging/Dockerfile").read_text(), re.M)[1])


def render(components):
    """The documents of an overlay with these components, as a user would write it."""
    with tempfile.TemporaryDirectory(dir="target") as directory:
        up = "../../packaging/kubernetes"
        overlay = {
            "resources": [f"{up}/base"],
            "components": [f"{up}/components/{name}" for name in components],
            "images": [{"name": "herdwick", "newName": "registry.example/herdwick", "newTag": "1"}],
        }
        (pathlib.Path(directory) / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        text = subprocess.run([KUSTOMIZE, "build", directory], check=True, capture_output=True, text=True)
    documents = list(yaml.safe_load_all(text.stdout))
    assert len({(each["kind"], each["metadata"]["name"]) for each in documents}) == len(documents)
    return {each["kind"]: each for each in documents}


def validate(documents):
    for document in documents.values():
        # The schema of a custom resource is in no package; `consistent` reads what it refers to.
        if document["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def consistent(documents):
    """What one document says of another, which no schema knows."""
    template = documents["StatefulSet"]["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    pod = template["spec"]
    [container] = pod["containers"]
    selectors = [
        documents["Service"]["spec"]["selector"],
        documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        documents["StatefulSet"]["spec"]["selector"]["matchLabels"],
        pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    named = [documents["Service"]["spec"]["ports"][0]["targetPort"], container["livenessProbe"]["tcpSocket"]["port"]]
    if monitor := documents.get("PodMonitor"):
        selectors.append(monitor["spec"]["selector"]["matchLabels"])
        named += [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    for selector in selectors:
        assert selector and selector.items() <= labels, selector
    assert set(named) <= ports.keys(), named
    assert documents["StatefulSet"]["spec"]["serviceName"] == documents["Service"]["metadata"]["name"]
    assert container["image"] == "registry.example/herdwick:1"
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(set(volumes)) == len(volumes)
    mounts = [mount["name"] for each in [container, *pod.get("initContainers", [])] for mount in each["volumeMounts"]]
    assert set(mounts) == set(volumes), (mounts, volumes)


def size(text):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


class Pod:
    """The server as a pod of these documents runs it: its user, its command, its mounts."""

    def __init__(self, documents):
        self.pod = documents["StatefulSet"]["spec"]["template"]["spec"]
        [self.container] = self.pod["containers"]
        self.user = self.pod["securityContext"]["runAsUser"]
        self.volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        for mount in self.container["volumeMounts"]:
            path = pathlib.Path(mount["mountPath"])
            # A new directory, as a new pod has, in a place of this mount namespace alone.
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path.parent], check=True)
            path.mkdir()
            # As the kubelet makes an emptyDir; a path of the host is root's.
            path.chmod(0o755 if "hostPath" in self.volumes[mount["name"]] else 0o777)
        for init in self.pod.get("initContainers", []):
            subprocess.run(init["command"], check=True)
        self.start()

    def run(self, user, words):
        assert words[0] == "herdwick"
        privileges = ["--clear-groups", "--no-new-privs"] + (["--bounding-set=-all"] if user else [])
        return subprocess.Popen(
            ["setpriv", f"--reuid={user}", f"--regid={user}", *privileges, BINARY, *words[1:]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def output(self, user, words):
        process = self.run(user, words)
        text = process.communicate()[0]
        return process.returncode, text

    def start(self):
        args = [word.replace("$(POD_IP)", "127.0.0.1") for word in self.container["args"]]
        assert not any("$(" in word for word in args), args
        self.server = self.run(self.user, ENTRYPOINT + args)
        self.log = []
        for line in self.server.stdout:
            self.log.append(line)
            if "ready" in line:
                break
        else:
            raise SystemExit(f"the server does not start: {self.log}")
        for probe in ["startupProbe", "readinessProbe"]:
            status, text = self.output(self.user, self.container[probe]["exec"]["command"])
            assert status == 0, (probe, text)

    def stop(self):
        self.server.terminate()
        assert self.server.wait(self.pod["terminationGracePeriodSeconds"]) == 0
        for mount in reversed(self.container["volumeMounts"]):
            subprocess.run(["umount", pathlib.Path(mount["mountPath"]).parent], check=True)


def metrics():
    with urllib.request.urlopen("http://127.0.0.1:9150/metrics") as page:
        return page.read().decode()


def transport(pod, user):
    status, text = pod.output(user, ["herdwick", "get", "-v", "key"])
    assert status == 0 and "value" in text, text
    return text


def base():
    pod = Pod(render([]))
    assert pod.output(pod.user, ["herdwick", "set", "key", "value"])[0] == 0
    assert "memcached_up 1" in metrics()
    assert "over shm" in transport(pod, pod.user)
    pod.stop()


def shared_memory():
    pod = Pod(render(["shared-memory"]))
    assert pod.output(pod.user, ["herdwick", "set", "key", "value"])[0] == 0
    assert "over shm" in transport(pod, pod.user)
    # Trust: another user of the node gets no shared memory.
    assert "over shm" not in transport(pod, 12345)
    # A container that starts again in the same directory, after a kill.
    pod.server.kill()
    pod.server.wait()
    pod.start()
    assert len(list(pathlib.Path("/run/herdwick").iterdir())) == 1
    pod.stop()


def keep_items():
    documents = render(["keep-items"])
    pod = Pod(documents)
    assert pod.output(pod.user, ["herdwick", "set", "key", "value"])[0] == 0
    bound = size(pod.volumes["items"]["emptyDir"]["sizeLimit"])
    used = sum(path.stat().st_blocks * 512 for path in pathlib.Path("/var/lib/herdwick").iterdir())
    assert used <= bound, f"{used} bytes of {bound}"
    assert bound < size(pod.container["resources"]["limits"]["memory"])
    pod.server.kill()
    pod.server.wait()
    pod.start()
    transport(pod, pod.user)
    pod.stop()


def fabrics():
    # Loopback stands for the pod's network. A client of another user has no shared memory, so it
    # takes RoCE.
    pod = Pod(render(["roce"]))
    assert pod.output(pod.user, ["herdwick", "set", "key", "value"])[0] == 0
    assert "over roce" in transport(pod, 12345)
    pod.stop()
    # Without a device the server serves all the same.
    pod = Pod(render(["rdma"]))
    assert pod.user == 0
    assert pod.output(0, ["herdwick", "set", "key", "value"])[0] == 0
    pod.stop()


subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
count = 0
for length in range(len(COMPONENTS) + 1):
    for chosen in itertools.combinations(COMPONENTS, length):
        documents = render(chosen)
        validate(documents)
        consistent(documents)
        count += 1
for part in [base, shared_memory, keep_items, fabrics]:
    part()
print(f"kubernetes: {count} overlays of {', '.join(COMPONENTS)}; the server of each runs")

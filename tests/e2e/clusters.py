"""A real API server with etcd, without scheduler and, unless a test starts some, controllers: pods name their node."""

from __future__ import annotations

import json
import ssl
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import yaml

from tests.e2e.build import built
from tests.real import daemons
from tests.waiting import free_port, wait_until

ADMIN = "of-the-admin"
NOT_FOUND, EXISTS = 404, 409

Json = dict[str, Any]


class RefusedError(Exception):
    """The API server rejected a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Cluster:
    """API server and etcd, with all files in one directory."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self._flags = flags
        self.log = folder / "api.log"
        self._port, self._store_port, peers_port = free_port(), free_port(), free_port()
        self._store_argv = [
            str(built("etcd")), f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls=http://127.0.0.1:{self._store_port}",
            f"--advertise-client-urls=http://127.0.0.1:{self._store_port}",
            f"--listen-peer-urls=http://127.0.0.1:{peers_port}",
        ]  # fmt: skip
        self._store: subprocess.Popen[bytes] | None = None
        self._api: subprocess.Popen[bytes] | None = None
        (folder / "tokens").write_text(f'{ADMIN},admin,admin,"system:masters"\n')
        daemons.run("openssl", "genrsa", "-out", str(folder / "accounts.key"), "2048")

    def start(self) -> None:
        """Start both and wait until they are ready."""
        self._store = daemons.start(self._store_argv, self.folder / "etcd.log", self._store_answers)
        self.start_api()

    def start_api(self) -> None:
        """Start only the API server; etcd still has its data."""
        argv = [
            str(built("kube-apiserver")), f"--etcd-servers=http://127.0.0.1:{self._store_port}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self._port}",
            f"--cert-dir={self.folder}/certificates", "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--allow-privileged",
            f"--token-auth-file={self.folder}/tokens", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/accounts.key",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            # No controller creates the service accounts that this plugin requires.
            "--disable-admission-plugins=ServiceAccount", *self._flags,
        ]  # fmt: skip
        self._api = daemons.start(argv, self.log, self._is_ready, timeout_s=90)

    def kill_api(self) -> None:
        """Kill the API server with SIGKILL."""
        assert self._api is not None
        daemons.kill(self._api)

    def stop(self) -> None:
        """Stop both daemons."""
        for daemon in (self._api, self._store):
            if daemon is not None:
                daemons.stop(daemon)

    def kubeconfig(self, token: str = ADMIN) -> Path:
        """Kubeconfig file for a token."""
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self.folder / "certificates/apiserver.crt"),
        }
        path = self.folder / f"kubeconfig-{uuid.uuid4()}"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }))  # fmt: skip
        return path

    def ask(self, method: str, path: str, body: Json | str | None = None, token: str = ADMIN) -> Json:
        """Send one request with a JSON or YAML body. Raises RefusedError if the server rejects it."""
        kind = "application/yaml" if isinstance(body, str) else "application/json"
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind, "Accept": "application/json"}
        request = Request(f"https://127.0.0.1:{self._port}{path}", data, headers, method=method)
        trusted = ssl.create_default_context(cafile=str(self.folder / "certificates/apiserver.crt"))
        try:
            with urlopen(request, timeout=20, context=trusted) as answer:
                return dict(json.load(answer))
        except HTTPError as error:
            with error:
                text = error.read().decode()
            message = json.loads(text)["message"] if text.startswith("{") else text
            raise RefusedError(error.code, message) from None

    def create(self, item: Json | str, *, dry_run: bool = False, token: str = ADMIN) -> Json:
        """Create an object with strict field validation."""
        read = yaml.safe_load(item) if isinstance(item, str) else item
        path = self._path_of(read["apiVersion"], read["kind"], read.get("metadata", {}).get("namespace", "default"))
        if path is None:
            raise RefusedError(NOT_FOUND, f"there is no {read['kind']} in {read['apiVersion']}")
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.ask("POST", path + query, item, token)

    def ensure_namespace(self, name: str) -> None:
        """Create a namespace unless it exists."""
        try:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except RefusedError as error:
            if error.status != EXISTS:
                raise

    def add_kind(self, definition: str) -> None:
        """Create a CustomResourceDefinition and wait until it is established."""
        spec = self.create(definition)["spec"]
        version = f"{spec['group']}/{spec['versions'][0]['name']}"
        wait_until(lambda: self._path_of(version, spec["names"]["kind"], "") is not None, every_s=0.1)

    def _path_of(self, version: str, kind: str, namespace: str) -> str | None:
        """API path of a kind, or None if the kind is unknown."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            known = self.ask("GET", root)["resources"]
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            return None
        resource = next((item for item in known if item["kind"] == kind and "/" not in item["name"]), None)
        if resource is None:
            return None
        return (
            f"{root}/namespaces/{namespace}/{resource['name']}"
            if resource["namespaced"]
            else f"{root}/{resource['name']}"
        )

    def token_of(self, namespace: str, account: str) -> str:
        """Token of a service account, like the kubelet requests it for a pod."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.ask("POST", path, wanted)["status"]["token"])

    def _store_answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._store_port}/health", timeout=2):
                return True
        except (URLError, OSError):
            return False

    def _is_ready(self) -> bool:
        try:
            return bool(self.ask("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"])
        except (OSError, RefusedError):
            return False


@contextmanager
def a_cluster(*flags: str) -> Iterator[Cluster]:
    """A running, empty cluster, with additional flags of the API server."""
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:
        cluster = Cluster(Path(folder), *flags)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()

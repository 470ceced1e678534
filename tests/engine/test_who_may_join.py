"""Who takes part has the job's key; what is asked for (certificates, another backend) is done or refused."""

import itertools
import os
import pickle
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import HashStore, PrefixStore

import outpace
from outpace.engines.cluster import backend
from outpace.engines.cluster.group import Group
from outpace.engines.cluster.joining import Start
from outpace.engines.cluster.open import key_of, nonce_of
from outpace.engines.cluster.sealing import SealedStore, Tampered
from outpace.job.environment import Place
from tests.support import joining
from tests.support.processes import python_path

NO_PICKLES = Path(joining.__file__).with_name("no_pickles")
_store, _serials = HashStore(), itertools.count()


def proved(*keys: bytes) -> list[str]:
    """What agents with these keys are told when they have connected."""
    store = PrefixStore(f"{next(_serials)}", _store)

    def prove(host: int) -> str:
        group = Group(store, "127.0.0.1", range(len(keys)), host, 20)
        try:
            group.prove(keys[host], "here", 5)
        except RuntimeError as error:
            return str(error)
        return "it accepts" if _accepts(group) else f"{len(group._listeners)} listener refuses"

    with ThreadPoolExecutor(len(keys)) as threads:
        return list(threads.map(prove, range(len(keys))))


def _accepts(group: Group) -> bool:
    for listener in group._listeners:
        with socket.socket(fileno=os.dup(listener.fd)) as listening, socket.socket() as stranger:
            stranger.settimeout(0.2)
            try:
                stranger.connect(listening.getsockname())
            except TimeoutError:
                continue
            return True
    return False


def test_agents_of_one_job_connect_and_nobody_after_them():
    assert proved(b"key", b"key", b"key") == ["1 listener refuses"] * 3


def test_whoever_does_not_have_the_key_is_found_out():
    told = proved(b"key", b"another", b"key")
    assert all("does not have the key" in words for words in told), told


def test_what_stands_in_the_store_without_a_seal_is_not_read():
    inner = HashStore()
    store = SealedStore(inner, b"key", "here")
    store.set("a", b"mine")
    assert store.get("a") == store.multi_get(["a"])[0] == b"mine"
    for forged in (b"", b"x", bytes(100), inner.get("here/a")):
        inner.set("here/b", forged)
        with pytest.raises(Tampered, match="under here/b that no rank"):
            store.get("b")


def test_hosts_with_different_tokens_do_not_meet():
    told = outpace.spawn(joining.begin_with_own_token, 2, hosts=2)
    assert any("OUTPACE_TOKEN is not the same on all hosts" in words for words in told), told
    assert all(told)


def test_records_of_another_job_with_the_same_token_are_refused():
    env = {"OUTPACE_TOKEN": "a secret of several jobs"}
    entry, _ = outpace.spawn(joining.record, 2, hosts=2, env=env)
    for words in outpace.spawn(joining.begin_after, 2, (entry,), hosts=2, env=env):
        assert f"under {joining.FIRST_ENTRY} that no rank of this job wrote" in words


def start_in(inner: HashStore) -> Start:
    return Start(inner, SealedStore(inner, b"from the token", "outpace"), "0/0", Place(0, 3, 1), 5.0)


def started(inner: HashStore, hosts: int = 3) -> list[tuple[bytes, bool]]:
    """The key that each host of a job with this store finds, and whether it was there before."""
    start = start_in(inner)

    def begin(host: int) -> tuple[bytes, bool]:
        nonce, is_back = nonce_of(start, host)
        return key_of(start, host, nonce, hosts), is_back

    with ThreadPoolExecutor(hosts) as threads:
        return list(threads.map(begin, range(hosts)))


def test_every_start_has_a_key_of_its_own_which_a_host_that_comes_back_finds(monkeypatch):
    monkeypatch.setenv("OUTPACE_TOKEN", "a secret of several jobs")
    store = HashStore()
    key = started(store)[0][0]
    assert started(store) == [(key, True)] * 3
    found = started(HashStore())
    assert found == [(found[0][0], False)] * 3
    assert found[0][0] != key


def test_nonces_of_another_job_with_the_same_token_make_no_host_take_up_its_key(monkeypatch):
    """One that finds its own there believes it comes back: it has to get an answer before it begins."""
    monkeypatch.setenv("OUTPACE_TOKEN", "a secret of several jobs")
    first, second = HashStore(), HashStore()
    key = started(first)[0][0]
    places = [f"outpace/0/0/nonce/{host}" for host in range(3)]
    for place in places[1:]:
        second.set(place, first.get(place))
    found = started(second)
    assert [is_back for _, is_back in found] == [False, True, True]
    assert key not in [found_key for found_key, _ in found]
    second.set(places[0], first.get(places[0]))  # in place of what that host has drawn
    assert key_of(start_in(second), 0, b"drawn", 3) != key


def test_one_token_for_all_hosts_and_no_pickles(tmp_path):
    noted = tmp_path / "unpickled"
    env = {"OUTPACE_TOKEN": "a secret", "UNPICKLED": str(noted), "PYTHONPATH": python_path(NO_PICKLES)}
    finals = outpace.spawn(joining.train_without_pickles, 2, hosts=2, env=env)
    assert len(set(finals)) == 1
    assert len((tmp_path / "unpickled.agents").read_text().split()) == 2, "the agents were not looked at"
    assert not noted.exists(), noted.read_text()


def test_the_look_out_for_pickles_notices_one(tmp_path):
    code = f"import sitecustomize, pickle; sitecustomize.refuse(); pickle.loads({pickle.dumps(1)!r})"
    env = {**os.environ, "UNPICKLED": str(tmp_path / "unpickled"), "PYTHONPATH": str(NO_PICKLES)}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True).returncode == 1
    assert (tmp_path / "unpickled").exists()


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificates(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("`openssl` is not installed, so that there are no certificates")
    files = {what: tmp_path / f"{what}.pem" for what in ("key", "cert")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    out = ["-keyout", str(files["key"]), "-out", str(files["cert"])]
    subprocess.run([*command, *out], check=True, capture_output=True)
    paths = (files["key"], files["cert"], files["cert"])
    return dict(zip(backend.CERTIFICATES[:3], map(str, paths), strict=True))


def has_tls(certificates) -> bool:
    code = "import torch.distributed as d; d.ProcessGroupGloo.create_device(hostname='127.0.0.1')"
    env = {**os.environ, backend.TRANSPORT: "TCP_TLS", **certificates}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True).returncode == 0


def test_certificates_are_used_or_refused_and_never_ignored(certificates):
    if has_tls(certificates):
        finals = outpace.spawn(joining.train, 2, hosts=2, env=certificates)
        assert len(set(finals)) == 1
    else:
        for words in outpace.spawn(joining.begin, 2, hosts=2, env=certificates):
            assert "cannot use GLOO_DEVICE_TRANSPORT=TCP_TLS" in words
            assert "Nothing is sent in the clear instead" in words


def test_a_host_without_a_certificate_cannot_join(certificates):
    if not has_tls(certificates):
        pytest.skip("Gloo of this torch was built without TLS (USE_GLOO_WITH_OPENSSL)")
    told = outpace.spawn(joining.begin_with_certificates_on_the_first_host, 2, (certificates,), hosts=2)
    assert all(told)


def test_certificates_for_a_transport_without_them_are_refused(certificates):
    env = {**certificates, backend.TRANSPORT: "TCP"}
    for words in outpace.spawn(joining.begin, 2, hosts=2, env=env):
        assert "GLOO_DEVICE_TRANSPORT=TCP uses none" in words


# -- another backend ---------------------------------------------------------------------------------------------------


def test_another_backend_joins_the_agents(tmp_path):
    used = tmp_path / "used"
    own = "tests.support.own_backend:own"
    env = {backend.BACKEND: own, "OWN_BACKEND_USED": str(used), "PYTHONPATH": python_path()}
    finals = outpace.spawn(joining.train, 2, hosts=2, env=env)
    assert len(set(finals)) == 1
    assert len(used.read_text().split()) >= 2, "the agents did not use it"


@pytest.mark.parametrize("name", ["nonsense", "tests.support.own_backend:nonsense", "no_such_module:own"])
def test_a_backend_that_is_not_there_is_named_at_once(name):
    for words in outpace.spawn(joining.begin, 2, hosts=2, env={backend.BACKEND: name}):
        assert f"{backend.BACKEND}=" in words

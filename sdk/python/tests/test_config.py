"""Where the service is found, and what is asked of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsec import DSecContainerRunArgs, InvalidArgument, config


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DSEC_URL", "DSEC_API_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "system.json")
    return tmp_path


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def test_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="dsec up --detach"):
        config.load()
    write(home / "system.json", json.dumps({"url": "http://s:1", "key": "ks"}))
    assert config.load() == config.Config("http://s:1", "ks")
    write(home / ".config/dsec/client.json", json.dumps({"url": "http://u:2/", "key": "ku"}))
    assert config.load() == config.Config("http://u:2", "ku")
    monkeypatch.setenv("DSEC_API_KEY", "ke")
    assert config.load() == config.Config("http://u:2", "ke")
    monkeypatch.setenv("DSEC_URL", "http://e:3")
    assert config.load() == config.Config("http://e:3", "ke")
    assert config.load("https://a:4", "ka") == config.Config("https://a:4", "ka")
    assert "ka" not in repr(config.load("https://a:4", "ka"))


def test_a_key_is_not_sent_to_another_service(home: Path) -> None:
    write(home / ".config/dsec/client.json", json.dumps({"url": "http://u:2", "key": "ku"}))
    assert config.load("http://other:1").key == ""
    assert config.load("http://u:2/").key == "ku"


def test_what_is_around_values_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEC_URL", "http://e:3/\n")
    monkeypatch.setenv("DSEC_API_KEY", " ke\r\n")
    assert config.load() == config.Config("http://e:3", "ke")
    assert config.load("http://a:4 ", "ka\n") == config.Config("http://a:4", "ka")


@pytest.mark.parametrize("key", ["secret a", "secret\na", "secreté", "secret\x7f"])
def test_a_key_that_is_none_is_refused_unseen(key: str) -> None:
    with pytest.raises(InvalidArgument, match="DSEC_API_KEY") as e:
        config.load("http://a:4", key)
    assert "secret" not in str(e.value)
    with pytest.raises(InvalidArgument, match="control characters"):
        config.load("http://a\n:4", "ka")


def test_a_readable_key_is_warned_of(home: Path) -> None:
    write(home / ".config/dsec/client.json", json.dumps({"url": "http://u:2", "key": "ku"}), 0o644)
    with pytest.warns(UserWarning, match="chmod 600"):
        assert config.load().key == "ku"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url":1}', '{"url":"x","key":null}'])
def test_broken_files_are_named(home: Path, text: str) -> None:
    write(home / ".config/dsec/client.json", text)
    with pytest.raises(InvalidArgument, match=r"client\.json"):
        config.load()


@pytest.mark.parametrize("url", ["127.0.0.1:7777", "ftp://x", "http://"])
def test_addresses(url: str) -> None:
    with pytest.raises(InvalidArgument, match="want http"):
        config.load(url, "k")


def test_arguments_on_the_wire() -> None:
    args = DSecContainerRunArgs(
        container_image="debian",
        toolkits=["agent@v2"],
        memory_limit_mb=4096,
        cpu_cores_limit=0.5,
        ttl_running_stop=300,
        network_rules={"npm": False, "pypi": True},
        init_user=0,
        secrets={"TOKEN": "hush"},
        labels={"a": "1", "b": "1"},
    )
    assert "hush" not in repr(args)
    assert args.to_json(120, {"b": "2"}) == {
        "backend": "BACKEND_CONTAINER",
        "environment": {"image": "debian", "toolkits": ["agent@v2"]},
        "limits": {"memoryBytes": str(4 << 30), "cpuMillis": "500"},
        "secrets": {"TOKEN": "hush"},
        "labels": {"a": "1", "b": "2"},
        "idleTimeoutSeconds": 300,
        "createTimeoutSeconds": 120,
        "user": "0",
        "networkRules": [{"target": "npm", "allow": False}, {"target": "pypi", "allow": True}],
    }
    with pytest.raises(InvalidArgument, match="memory_limit_mb"):
        DSecContainerRunArgs(memory_limit_mb=float("nan")).to_json()
    with pytest.raises(AttributeError):
        args.memory_limit_mb = 1  # type: ignore[misc]


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_limits_above_nothing(limit: float) -> None:
    with pytest.raises(InvalidArgument, match="memory_limit_mb"):
        DSecContainerRunArgs(container_image="debian", memory_limit_mb=limit).to_json()

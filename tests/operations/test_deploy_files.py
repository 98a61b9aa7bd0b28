"""Files of `deploy/`: what is shipped is taken, and one deliberate mistake each is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings.models.server.events import ServerEventsSettings

from privpipe.cluster.workers.processes import describe_configuration
from privpipe.cluster.workers.progress import (
    GATES,
    GAUGES,
    OF_ALL,
    PROMISED,
    RELEASED,
    STAGES,
    WORDS,
)
from privpipe.errors import OptionError
from privpipe.pipeline.operations.deployment_file import read_automations, read_deployments

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_deployments__of_the_repository_are_taken() -> None:
    found = {one.name: one for one in read_deployments(str(DEPLOY / "prefect.yaml"))}
    assert set(found) == {"release", "train", "audit", "incremental", "backfill"}
    assert found["release"].schedules == (("0 2 * * *", "Europe/Berlin", True),)
    assert len(read_automations(str(DEPLOY / "automations.yaml"))) == 4


@pytest.mark.parametrize(
    ("text", "instead", "said"),
    [
        (", timezone: Europe/Berlin, active: true", "", "names no time zone"),
        ("Europe/Berlin, active: true", "Europe/Berlim, active: true", "unknown"),
        ("Europe/Berlin, active: true", "CEST, active: true", "unknown"),
        ('cron: "0 2 * * *"', 'cron: "0 25 * * *"', "the cron '0 25 * * *', which is none"),
        ('cron: "0 2 * * *"', "cron: 5", "the cron 5, which is none"),
        ("config_path: run.toml }", "config_paht: run.toml }", "did you mean 'config_path'"),
        (", work_queue_name: releases", "", "names no queue"),
        ("work_pool: *releases", "work_pool: *increments", "as 'release' does"),
        (
            "work_pool: *releases",
            "work_pool: *releases\n    concurrency_limit: 1",
            "ends sound runs",
        ),
        (
            "privpipe.flows.deployments.release",
            "privpipe.flows.deployments.releases",
            "not installed",
        ),
        ("enforce_parameter_schema: true", "enforce_parameter_schema: false", "check parameters"),
        ("deployments:", "deployments: [", "cannot be read"),
        ("- name: release", "- name: ../x", "a / or % in it"),
        ("- name: release", '- name: ""', "has no name"),
        ("- name: release", "- name: train", "several deployments named 'train'"),
    ],
)
def test_deployments__a_mistake_is_refused(
    tmp_path: Path, text: str, instead: str, said: str
) -> None:
    content = (DEPLOY / "prefect.yaml").read_text()
    assert text in content
    path = tmp_path / "prefect.yaml"
    path.write_text(content.replace(text, instead, 1))
    with pytest.raises(OptionError, match=re.escape(said)) as refused:
        read_deployments(str(path))
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("time", "is_taken"),
    [
        ("2026-11-22T06:00:00Z", True),
        ("2026-11-22T07:00:00.5+01:00", True),
        ("yesterday", False),
        ("2026-11-22T06:00:00", False),  # without an offset it is no moment
        (17, False),
    ],
)
def test_parameters__are_checked_by_type_at_the_server(time: Any, is_taken: bool) -> None:
    from prefect.utilities.callables import parameter_schema
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    from privpipe.flows.deployments import backfill, release

    found = {"config_path": "run.toml", "logical_time": time}
    span = {"config_path": "run.toml", "since": time, "until": time}
    for flow, given, taken in (
        (release, found, is_taken),
        (release, {**found, "until": "deploy"}, False),
        (backfill, span, is_taken),
    ):
        schema = parameter_schema(flow).model_dump()
        with nullcontext() if taken else pytest.raises(ValidationError):
            validate(given, schema, raise_on_error=True)  # as the server does


def test_automations__are_ones_that_prefect_reads() -> None:
    from prefect.events.schemas.automations import AutomationCore
    from pydantic import ValidationError

    items = read_automations(str(DEPLOY / "automations.yaml"))
    for item in items:
        assert AutomationCore.model_validate(item).enabled
    broken = {**items[0], "trigger": {**items[0]["trigger"], "posture": "Sometimes"}}
    with pytest.raises(ValidationError):
        AutomationCore.model_validate(broken)


def test_dask_configuration__is_the_one_that_certs_writes() -> None:
    assert yaml.safe_load((DEPLOY / "dask.yaml").read_text()) == describe_configuration(
        "/etc/privpipe/certs"
    )


def read_expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    boards = [json.loads(path.read_text()) for path in (DEPLOY / "grafana/boards").glob("*.json")]
    panels = [panel for board in boards for panel in board["panels"]]
    return [rule["expr"] for rule in rules] + [
        target["expr"] for panel in panels for target in panel["targets"]
    ]


def test_alerts_and_dashboard__speak_of_gauges_and_words_that_there_are() -> None:
    known = {*GAUGES, *WORDS, *OF_ALL, RELEASED, PROMISED}
    expressions = read_expressions()
    named = set(re.findall(r"privpipe_\w+", " ".join(expressions)))
    assert named <= known
    assert named >= known, "a gauge that nobody looks at"
    words = set(re.findall(r'(?:stage|gate)=~?"([^"]+)"', " ".join(expressions)))
    assert {word for group in words for word in group.split("|")} <= {*STAGES, *GATES}


def test_alerts__are_parsed_and_a_mistake_is_not() -> None:
    promql = pytest.importorskip("promql_parser")
    for expression in read_expressions():
        promql.parse(expression)
    with pytest.raises(ValueError, match=r".+"):
        promql.parse(read_expressions()[0].replace("[15m]", "[15 minutes"))


def test_alerts__each_has_its_place_in_the_runbook() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    text = (DEPLOY / "RUNBOOK.md").read_text()
    for rule in rules:
        assert f"**{rule['alert']}**" in text, rule["alert"]


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def test_kubernetes__resources_are_valid_and_a_mistake_is_not() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    [runs] = documents("runs.yaml")
    kubernetes.validate(runs, "1.31", strict=True)
    runs["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(runs, "1.31", strict=True)


def test_kubernetes__the_claim_of_the_account_is_among_the_valid_resources() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    stored = documents("storage.yaml")
    for document in stored:
        kubernetes.validate(document, "1.31", strict=True)
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in documents("runs.yaml")[0]["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claims == [stored[0]["metadata"]["name"]]


def test_kubernetes__pods_of_the_operator_are_valid_and_closed() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    [cluster] = documents("cluster.yaml")
    pods = [cluster["spec"][part]["spec"] for part in ("worker", "scheduler")]
    pods.append(documents("runs.yaml")[0]["spec"]["template"]["spec"])
    for spec in pods:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes.validate(pod, "1.31", strict=True)
        assert spec["securityContext"]["runAsNonRoot"]
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert container["resources"]["limits"]["memory"]
            assert "value" not in {
                key for env in container.get("env", ()) for key in env if "SECRET" in env
            }


def test_operator__its_own_schema_takes_the_cluster_and_refuses_a_mistake() -> None:
    from jsonschema import Draft7Validator

    schema = json.loads((Path(__file__).parent / "data" / "daskcluster.json").read_text())
    check = Draft7Validator(schema)
    [cluster] = documents("cluster.yaml")
    assert list(check.iter_errors(cluster)) == []
    cluster["spec"]["worker"]["replicas"] = "four"
    assert list(check.iter_errors(cluster))


def test_pod_monitors__find_the_scheduler_s_pages_by_a_certificate_and_what_is_promised() -> None:
    from jsonschema import Draft7Validator

    check = Draft7Validator(
        json.loads((Path(__file__).parent / "data" / "podmonitor.json").read_text())
    )
    monitor, of_promises = documents("monitor.yaml")
    assert list(check.iter_errors(monitor)) == list(check.iter_errors(of_promises)) == []
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    scheduler = documents("cluster.yaml")[0]["spec"]["scheduler"]["spec"]["containers"][0]
    assert endpoint["port"] in {port["name"] for port in scheduler["ports"]}
    # As the file for Prometheus without an operator says, and as alerts.yaml asks for.
    job, hourly = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    [named] = of_promises["spec"]["podMetricsEndpoints"]
    assert named["relabelings"] == [{"targetLabel": "job", "replacement": hourly["job_name"]}]
    pod = documents("runs.yaml")[0]["spec"]["template"]
    assert of_promises["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    opened = [port for one in pod["spec"]["containers"] for port in one.get("ports", ())]
    assert [(port["name"], port["containerPort"]) for port in opened] == [(named["port"], 9100)]
    assert {"targetLabel": "job", "replacement": job["job_name"]} in endpoint["relabelings"]
    assert endpoint["scheme"] == job["scheme"]
    endpoint["tls"] = endpoint.pop("tlsConfig")
    assert list(check.iter_errors(monitor))


def test_scaling__is_of_the_operator_s_own_workers_by_gauges_that_there_are() -> None:
    from jsonschema import Draft7Validator

    check = Draft7Validator(
        json.loads((Path(__file__).parent / "data" / "scaledobject.json").read_text())
    )
    [scaled] = documents("scaling.yaml")
    assert list(check.iter_errors(scaled)) == []
    [cluster], target = documents("cluster.yaml"), scaled["spec"]["scaleTargetRef"]
    assert target["apiVersion"] == cluster["apiVersion"]
    assert target["name"] == f"{cluster['metadata']['name']}-default"
    [trigger] = scaled["spec"]["triggers"]
    assert set(re.findall(r"privpipe_\w+", trigger["metadata"]["query"])) <= set(GAUGES)
    scaled["spec"]["maxReplicaCount"] = "forty"
    assert list(check.iter_errors(scaled))


def test_kustomization__names_every_manifest() -> None:
    [found] = documents("kustomization.yaml")
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert {*found["resources"], "kustomization.yaml"} == there


def test_grafana__finds_boards_and_prometheus_where_compose_puts_them() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in services["grafana"]["volumes"])
    folder = DEPLOY / "grafana" / "provisioning"
    [provider] = yaml.safe_load((folder / "dashboards/boards.yaml").read_text())["providers"]
    boards = DEPLOY / mounts[provider["options"]["path"]]
    assert {path.name for path in boards.iterdir()} == {"fleet.json", "run.json"}
    texts = [path.read_text() for path in boards.iterdir()]
    uids = {json.loads(text)["uid"] for text in texts}
    links = set(re.findall(r'"url": "/d/([\w-]+)', "".join(texts)))
    assert links == uids  # each leads to the other
    [source] = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert services["grafana"]["environment"]["GF_SERVER_PROTOCOL"] == "https"


def test_compose__fits_its_schema_and_a_mistake_does_not() -> None:
    from jsonschema import Draft7Validator

    schema = json.loads((Path(__file__).parent / "data" / "compose_spec.json").read_text())
    check = Draft7Validator(schema)
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert list(check.iter_errors(content)) == []
    for name, service in content["services"].items():
        assert service["mem_limit"], name
        if service["image"].startswith("privpipe"):
            assert service["read_only"]
            assert service["user"] == "10001:10001"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "only loopback is published"
    content["services"]["server"]["restarts"] = "always"
    assert list(check.iter_errors(content))


def test_compose__holds_no_secret() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for line in text.splitlines():
        if re.search(r"PASSWORD|SECRET|_USER", line):
            assert "_FILE: /run/secrets/" in line, line


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_units__are_verified_and_a_mistake_is_told(tmp_path: Path) -> None:
    """With a program of this machine, since /opt/privpipe is not here."""

    def verify(name: str, text: str) -> str:
        (tmp_path / name).write_text(re.sub(r"/opt/privpipe/\.venv/bin/\w+", "/bin/true", text))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return "\n".join(line for line in done.stderr.splitlines() if name in line)

    assert len(UNITS) == 5
    for unit in UNITS:
        text = unit.read_text()
        assert verify(unit.name, text) == ""
        assert "UMask=0077" in text
        assert "LimitCORE=0" in text
        # What ends by itself is started by its timer.
        has_timer = unit.with_suffix(".timer").exists()
        assert ("Type=oneshot" if has_timer else "Restart=always") in text
        asked = ["security", "--offline=true", "--threshold=30", str(tmp_path / unit.name)]
        found = subprocess.run(["systemd-analyze", *asked], capture_output=True, check=False)
        assert found.returncode == 0, "more than 3.0 of 10 exposed"
    timer = DEPLOY / "systemd" / "privpipe-promises.timer"
    assert verify(timer.name, timer.read_text()) == ""
    wrong = UNITS[0].read_text().replace("Restart=always", "Restart=evermore")
    assert "evermore" in verify("wrong.service", wrong)


def test_environments__keep_account_and_keys_where_they_last() -> None:
    """Each names both, below a volume or a state folder; in an emptyDir a restart forgot them."""
    kept: list[tuple[dict[str, str], set[str]]] = []
    [runs] = documents("runs.yaml")
    pod = runs["spec"]["template"]["spec"]
    container, *_ = pod["containers"]
    lasting = {one["name"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    points = {one["mountPath"] for one in container["volumeMounts"] if one["name"] in lasting}
    kept.append(({one["name"]: one["value"] for one in container["env"]}, points))
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["runs"]
    volumes = dict(one.split(":")[:2] for one in service["volumes"])
    points = {volumes[name] for name in compose["volumes"] if name in volumes}
    kept.append((service["environment"], points))
    unit = (DEPLOY / "systemd" / "privpipe-runs.service").read_text()
    named = dict(re.findall(r"(PRIVPIPE_\w+)=(\S+)", unit))
    kept.append((named, {f"/var/lib/{one}" for one in re.findall(r"StateDirectory=(\w+)", unit)}))
    for environment, points in kept:
        for name in ("PRIVPIPE_ACCOUNT", "PRIVPIPE_KEYS"):
            assert any(environment[name].startswith(f"{point}/") for point in points), name


@pytest.mark.parametrize(
    "name", ["Dockerfile", "RUNBOOK.md", "systemd/privpipe-prefect-server.service"]
)
def test_server__remembers_through_an_outage_which_runs_were_silent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it forgets them a minute after an automation's window: they stay Running."""
    setting = "PREFECT_SERVER_EVENTS_EXPIRED_BUCKET_BUFFER"
    assert f"{setting}=P7D" in (DEPLOY / name).read_text()
    monkeypatch.setenv(setting, "P7D")
    assert ServerEventsSettings().expired_bucket_buffer == timedelta(days=7)

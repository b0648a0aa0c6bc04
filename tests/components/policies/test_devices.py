"""Devices: one that is not there is refused in a line, and one that is gives the same numbers again."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu import cuda

from components.policies import Coma, Qmix, Qplex
from components.policies.devices import advice, opened, require
from orchestra import UsageError
from orchestra.cli.main import main
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags

EXPERIMENT = Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py"


@pytest.fixture
def gpus(monkeypatch):
    """Have torch believe in so many GPUs, or in having been built without any."""

    def there_are(n, version="12.8"):
        monkeypatch.setattr(torch, "__version__", "2.13.0")
        monkeypatch.setattr(torch.version, "cuda", version)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)

    return there_are


@pytest.mark.parametrize(
    ("n", "version", "device", "said"),
    [
        (0, None, "cuda", "device 'cuda' is not available: torch 2.13.0 is built without CUDA"),
        (0, "12.8", "cuda", "device 'cuda' is not available: torch 2.13.0 finds no GPU"),
        (2, "12.8", "cuda:2", "device 'cuda:2' is not available: torch 2.13.0 finds cuda:0, cuda:1"),
        (2, "12.8", "cuda:-1", "device 'cuda:-1' is not allowed: it must be cpu, cuda or cuda:N"),
        (2, "12.8", "gpu", "device 'gpu' is not allowed: it must be cpu, cuda or cuda:N"),
    ],
)
def test_a_device_that_is_not_there_is_refused(gpus, n, version, device, said):
    gpus(n, version)
    with pytest.raises(UsageError) as caught:
        require(device)
    assert str(caught.value) == said


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:1"])
def test_a_device_that_is_there_is_not_refused(gpus, device):
    gpus(2)
    require(device)


@pytest.mark.parametrize(("n", "version", "said"), [(0, "12.8", True), (1, "12.8", False), (0, None, False)])
def test_a_build_for_gpus_on_a_machine_without_one_is_told(gpus, n, version, said):
    gpus(n, version)
    text = advice()
    assert (text is not None) == said
    assert text is None or text.startswith("torch 2.13.0 holds the libraries of CUDA 12.8, gigabytes")


def test_a_word_that_is_no_device_is_refused_before_a_run_is_planned(capsys):
    assert main(["run", str(EXPERIMENT), "--device", "gpu", "--dry-run"]) == 2
    assert "device 'gpu' is not allowed: it must be cpu, cuda or cuda:N" in capsys.readouterr().err


def test_a_run_on_a_device_that_is_not_there_ends_before_it_begins(gpus, tmp_path, capsys):
    gpus(0)
    assert main(["run", str(EXPERIMENT), "--device", "cuda:1", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err == "orchestra: error: device 'cuda:1' is not available: torch 2.13.0 finds no GPU\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("algorithm", ["qmix", "coma"])
def test_the_learner_alone_is_on_the_device_that_is_asked_for(algorithm):
    function = load_experiment(EXPERIMENT)
    topology = build(function, Flags.of(function).defaults | {"device": "cuda:1", "algorithm": algorithm})
    policies = {
        actor.name: actor.factory.keywords["policy"]
        for node in topology.nodes.values()
        for actor in node.actors
        if "policy" in actor.factory.keywords
    }
    assert policies["trainer"].keywords["device"] == "cuda:1"
    for actor in ("worker", "evaluator"):
        assert "device" not in policies[actor].__self__.options


def test_a_gpu_is_told_to_give_the_same_numbers_again(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    assert opened("cpu") == torch.device("cpu")
    assert asked == []
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert opened("cuda:0") == torch.device("cuda", 0)
    assert asked == [True]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.utils.deterministic.fill_uninitialized_memory


@cuda
@pytest.mark.parametrize("algorithm", [Qmix, Qplex, Coma], ids=lambda it: it.__name__)
def test_a_gpu_learns_what_the_cpu_learns_and_the_same_again(algorithm, spec, make_batch):
    params = {}
    for name, device in (("cpu", "cpu"), ("gpu", "cuda"), ("again", "cuda")):
        policy = algorithm(spec, device=device, optimizer="adam", seed=1)
        for seed in range(5):
            policy.learn(make_batch(seed=seed))
        assert {t.device.type for t in policy.state_dict()["online"].values()} == {"cpu"}
        params[name] = policy.params()
    np.testing.assert_array_equal(params["gpu"], params["again"])
    np.testing.assert_allclose(params["gpu"], params["cpu"], atol=1e-4)


@cuda
def test_what_was_learned_on_a_gpu_is_learned_on_from_on_the_cpu(spec, make_batch):
    there, here = Qmix(spec, device="cuda", optimizer="adam"), Qmix(spec, optimizer="adam", seed=1)
    there.learn(make_batch())
    here.load_state_dict(there.state_dict())
    for policy in (there, here):
        policy.learn(make_batch(seed=1))
    np.testing.assert_allclose(there.params(), here.params(), atol=1e-4)

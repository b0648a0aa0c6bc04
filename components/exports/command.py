"""`orchestra export`: the figures of runs as a table, or the policy of a run for other programs."""

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from components.reporting.saved_policy import DEFAULT, add_checkpoint_flag, load_policy
from orchestra import FlagParser, RunDirectory, UsageError

_PACKAGES = {".csv": (), ".parquet": ("pyarrow",), ".safetensors": ("safetensors",), ".onnx": ("onnx", "onnxruntime")}
"""The packages that each format needs, by the suffix of a file; the extra has the name of the suffix."""
_TABLES = (".csv", ".parquet")
_HELP = """Export the figures of runs as a table, or the policy of a run, by the suffix of --output:

.csv, .parquet  a row for each record of metrics.jsonl
.safetensors    the parameters of acting, with their names
.onnx           the policy as a graph that acts greedily; episodes are played to check that it acts identically"""


def command(arguments: list[str]) -> int:
    """Export the figures of runs as CSV or Parquet, or a policy as safetensors or ONNX."""
    parser = FlagParser(prog="orchestra export", description=_HELP)
    parser.add_argument("runs", metavar="RUN_DIR", type=Path, nargs="+", help="a run's directory; of a policy, one")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=f"ends in {', '.join(_PACKAGES)}")
    add_checkpoint_flag(parser)
    parser.add_argument("--episodes", type=int, default=8, help="that check an ONNX policy (default: 8)")
    options = parser.parse_strictly(arguments)
    runs = [RunDirectory.open(path) for path in options.runs]
    _check(options)
    try:
        print(_figures(runs, options.output) if options.output.suffix in _TABLES else _policy(runs[0], options))
    except OSError as error:
        raise UsageError(f"--output: {error.strerror}: {error.filename}") from error
    return 0


def _check(options: Namespace) -> None:
    suffix = options.output.suffix
    if suffix not in _PACKAGES:
        raise UsageError(f"--output: {str(options.output)!r} is not allowed: it must end in {', '.join(_PACKAGES)}")
    if any(find_spec(name) is None for name in _PACKAGES[suffix]):
        extra = suffix.removeprefix(".")
        raise UsageError(f"--output: {suffix} needs a package that is missing: pip install 'orchestra-rl[{extra}]'")
    if suffix not in _TABLES and len(options.runs) > 1:
        raise UsageError(f"--output: {suffix} is for the policy of one run; {len(options.runs)} runs were named")
    if suffix in _TABLES and options.checkpoint is not None:
        raise UsageError(f"--checkpoint: {suffix} has figures and no policy")
    if options.episodes < 1:
        raise UsageError(f"--episodes: {options.episodes} is not allowed: it must be 1 or more")


def _figures(runs: list[RunDirectory], output: Path) -> str:
    from components.exports.figures import columns_of, rows_of, write_csv, write_parquet

    rows = rows_of(runs)
    (write_csv if output.suffix == ".csv" else write_parquet)(output, rows)
    return f"{output}: {len(rows):,} rows, {len(columns_of(rows))} columns"


def _policy(run: RunDirectory, options: Namespace) -> str:
    from components.exports.policies import learner_of, modules_of, write_safetensors

    env, acting, path, env_steps = load_policy(run, options.checkpoint or DEFAULT, min(options.episodes, 64), seed=0)
    try:
        learner = learner_of(run, env.spec)
        learner.load(acting.params())
        if options.output.suffix == ".onnx":
            from components.exports.onnx_policy import check_onnx, write_onnx

            write_onnx(options.output, learner)
            compared = check_onnx(options.output, acting, env, options.episodes)
            return f"{options.output}: {path}, {compared:,} actions of {options.episodes} episodes are identical"
        arrays = modules_of(learner).named_params()
        notes = {"environment": env.spec.name, "policy": type(learner).__name__, "env_steps": str(env_steps)}
        write_safetensors(options.output, arrays, notes)
        return f"{options.output}: {path}, {len(arrays)} arrays"
    finally:
        env.close()

"""Run an experiment from Python, and look at its result."""

import orchestra

if __name__ == "__main__":
    result = orchestra.run("qmix_3m", steps=20_000, seed=1)
    print(result.state, result.directory.path)
    print(result.metrics()[-1])

"""What goes down reaches those who are there, and stops nobody for those who are not."""

from components.downstream import pass_down
from messages import PaceMsg

PACE = PaceMsg(running=True)


def test_who_is_there_is_told(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            worker = scene.probe("worker", PaceMsg)
            await pass_down(worker.ref, PACE)
            assert await worker.hear(PaceMsg) == PACE

    run(main())


def test_who_is_gone_is_passed_over(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            worker = scene.probe("worker", PaceMsg)
            await scene.kill(worker)
            await pass_down(worker.ref, PACE)
            await pass_down(scene.node.ref("elsewhere/worker"), PACE)
            assert worker.of(PaceMsg) == []

    run(main())

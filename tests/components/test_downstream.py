"""What goes down reaches those who are there, and stops nobody for those who are not."""

from components.downstream import send_downstream
from messages import SetCollectingMsg

PACE = SetCollectingMsg(collecting=True)


def test_who_is_there_is_told(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            worker = scene.probe("worker", SetCollectingMsg)
            await send_downstream(worker.ref, PACE)
            assert await worker.hear(SetCollectingMsg) == PACE

    run(main())


def test_who_is_gone_is_passed_over(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            worker = scene.probe("worker", SetCollectingMsg)
            await scene.kill(worker)
            await send_downstream(worker.ref, PACE)
            await send_downstream(scene.node.ref("elsewhere/worker"), PACE)
            assert worker.of(SetCollectingMsg) == []

    run(main())

"""Jobs: the state machine of one job, and the operations that apply it inside one store transaction.

Operations take a :class:`~ytk_controller.jobs.turn.Turn` first: submitting (clients), working (agents), upkeep (time).
"""

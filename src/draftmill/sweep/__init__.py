"""Sweeps: many builds that differ in a few values, compared by accept length.

    python -m draftmill.sweep --multirun blend.allocate.tools.share=0.05,0.1,0.2 drafter=eagle3,dflash
    python -m draftmill.sweep size          # 1/8, 1/4, 1/2 and the whole blend, with the data-scaling curve

Hydra makes the jobs, each job is one DVC experiment (`dvc exp show` lists them), and the run-cache and the stores
keep what jobs have in common from being computed twice. The workspace ends as it began.
"""

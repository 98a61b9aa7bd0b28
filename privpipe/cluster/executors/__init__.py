"""Where work runs: one protocol (`executor`), in this process or on Dask (`dask_executor`).

Start reading at `executor.Executor`; `open_executor` chooses by the configuration.
"""

"""Reports: tables in the terminal, pages and documents. They read results and nothing else."""

"""What certificates prove about a defended classifier: the studies, their summaries and tables."""

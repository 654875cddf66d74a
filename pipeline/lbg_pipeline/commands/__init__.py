"""The jobs as commands: options and their help. Each imports Spark when it runs, and can be handed to spark-submit."""

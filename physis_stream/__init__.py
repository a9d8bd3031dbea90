"""physis_stream: interactive, real-time video world models, served to many at once."""

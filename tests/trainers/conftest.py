"""Programs are launched by tests, and need the frameworks they are for: they are not collected."""

collect_ignore = ["programs"]

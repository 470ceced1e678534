"""The report of a race: one HTML file that needs no network. Words and figures are pure; `page` alone touches files."""

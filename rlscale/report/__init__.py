"""The HTML pages and their charts: each page is one self-contained file, made from records alone, that works offline.

    run_page, run_charts                           one run or several: `write_report`
    comparison_page, sweep_charts, ladder_charts   tasks side by side: `write_comparison`
    workers_page                                   wall time against cost: `write_workers_page`
    words                                          sentences about a comparison, for its page and for the terminal
    page, chart_style                              what all pages and all charts share

Figures are derived in `rlscale.analysis` and `rlscale.sizing`. Import from the modules: this folder loads none of them by itself,
because the terminal's tables need `words` and not Altair.
"""

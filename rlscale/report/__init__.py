"""The HTML pages and their charts: each page is one self-contained file, made from records alone, that works offline.

    run_page, run_charts                           one run or several: `write_report`
    comparison_page, sweep_charts, ladder_charts   tasks side by side: `write_comparison`
    workers_page, advice_page, branch_page         the pages of `rlscale workers`, `advise` and `branch`
    answers, ranking                               the sentence that a page begins with: of one task, of several
    words                                          sentences about a comparison, for its page and for the terminal
    page, chart_style                              what all pages and all charts share
    pictures                                       charts as PNG and SVG

Figures are derived in `rlscale.analysis` and `rlscale.sizing`. Import from the modules: this folder loads none of them by itself,
because the terminal's tables need `words` and not Altair.
"""

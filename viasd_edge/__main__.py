from viasd_edge.cli import main

main()

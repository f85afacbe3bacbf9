"""The reduction operations. The numbers are Horovod's; programs may hold them as plain ints."""

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

NAMES = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max", Product: "Product"}

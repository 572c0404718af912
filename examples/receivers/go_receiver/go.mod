module hookmq.example/receiver

go 1.19

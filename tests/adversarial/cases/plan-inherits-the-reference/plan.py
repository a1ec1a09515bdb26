class ModelNew(Model):
    pass

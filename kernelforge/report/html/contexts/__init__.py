"""What each template is given: views, and the tables and charts made of them."""
